// libnvidia-ml.so.1 over the card's file: what the driver tells about the card and who holds how much of it.
//
// Tells the same with or without the runtime preloaded, and initialises nothing. What is not here raises
// NVMLError_FunctionNotFound in nvidia-ml-py. The constants and layouts are those of nvml.h.
#include "card.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

namespace {

enum Return { success = 0, invalid_argument = 2, not_supported = 3, not_found = 6, insufficient_size = 7 };

constexpr const char *uuid = "GPU-01000000-0000-0000-0000-000000000000";
constexpr const char *bus_id = "00000000:01:00.0";
constexpr int cuda_version = RIG_CUDA_MAJOR * 1000;

struct Memory {
  unsigned long long total, free, used;
};

struct Memory2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

struct Process1 {
  unsigned pid;
  unsigned long long bytes;
};

struct Process {  // the same layout from version 2 on
  unsigned pid;
  unsigned long long bytes;
  unsigned gpu_instance, compute_instance;
};

struct PciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

void *the_card() { return reinterpret_cast<void *>(1); }

Return copy(char *to, unsigned size, const std::string &text) {
  if (text.size() >= size) return insufficient_size;
  snprintf(to, size, "%s", text.c_str());
  return success;
}

// The caller says how many it has room for and is told how many there are.
template <typename Row> Return list_processes(unsigned *count, Row *rows) {
  std::vector<rig::Holder> holders;
  if (rig::number("RIG_NVML_HIDES_PROCESSES", 0) == 0) holders = rig::card_holders();
  unsigned room = *count;
  *count = static_cast<unsigned>(holders.size());
  if (room < holders.size()) return insufficient_size;
  for (size_t i = 0; i < holders.size(); i++) {
    rows[i] = {};
    rows[i].pid = holders[i].pid;
    rows[i].bytes = holders[i].bytes;
  }
  return success;
}

struct Utilization {
  unsigned gpu, memory;
};

// The number in `column` of the reading that is `asked` questions on; a column that holds "-" is not told.
Return next_reading(int column, size_t &asked, unsigned *value) {
  std::vector<std::string> readings;
  std::stringstream all(rig::text("RIG_NVML_ACTIVITY", ""));
  for (std::string one; std::getline(all, one, ',');) readings.push_back(one);
  if (readings.empty()) return not_supported;
  std::stringstream reading(readings[std::min(asked++, readings.size() - 1)]);
  std::string cell;
  for (int i = 0; i <= column; i++) {
    if (!std::getline(reading, cell, ':')) rig::refuse("RIG_NVML_ACTIVITY: a reading is four numbers");
  }
  if (cell == "-") return not_supported;
  *value = static_cast<unsigned>(strtoul(cell.c_str(), nullptr, 10));
  return success;
}

}  // namespace

extern "C" {

int nvmlInit() { return success; }
int nvmlInit_v2() { return success; }
int nvmlInitWithFlags(unsigned) { return success; }
int nvmlShutdown() { return success; }

const char *nvmlErrorString(int code) {
  switch (code) {
    case success: return "Success";
    case invalid_argument: return "Invalid Argument";
    case not_supported: return "Not Supported";
    case not_found: return "Not Found";
    case insufficient_size: return "Insufficient Size";
    default: return "Unknown Error";
  }
}

int nvmlSystemGetDriverVersion(char *version, unsigned size) {
  return copy(version, size, RIG_CUDA_MAJOR >= 13 ? "580.65.06" : "570.86.10");
}

int nvmlSystemGetCudaDriverVersion(int *version) {
  *version = cuda_version;
  return success;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

int nvmlDeviceGetCount_v2(unsigned *count) {
  *count = 1;
  return success;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  if (index != 0) return invalid_argument;
  *device = the_card();
  return success;
}

int nvmlDeviceGetHandleByUUID(const char *asked, void **device) {
  if (strcmp(asked, uuid) != 0) return not_found;
  *device = the_card();
  return success;
}

// With a domain of eight digits or, as the runtime writes it, of four.
int nvmlDeviceGetHandleByPciBusId_v2(const char *asked, void **device) {
  if (strcmp(asked, bus_id) != 0 && strcmp(asked, bus_id + 4) != 0) return not_found;
  *device = the_card();
  return success;
}

int nvmlDeviceGetIndex(void *, unsigned *index) {
  *index = 0;
  return success;
}

int nvmlDeviceGetName(void *, char *name, unsigned size) { return copy(name, size, rig::text("RIG_NAME", "Rig card")); }

int nvmlDeviceGetUUID(void *, char *text, unsigned size) { return copy(text, size, uuid); }

int nvmlDeviceGetPciInfo_v3(void *, PciInfo *info) {
  *info = {};
  info->bus = 1;
  snprintf(info->bus_id, sizeof info->bus_id, "%s", bus_id);
  snprintf(info->bus_id_legacy, sizeof info->bus_id_legacy, "%s", bus_id + 4);
  return success;
}

int nvmlDeviceGetCudaComputeCapability(void *, int *major, int *minor) {
  auto capability = static_cast<int>(rig::number("RIG_CC", 89));
  *major = capability / 10;
  *minor = capability % 10;
  return success;
}

int nvmlDeviceGetMemoryInfo(void *, Memory *memory) {
  memory->total = rig::card_total();
  memory->used = rig::card_used();
  memory->free = memory->total - memory->used;
  return success;
}

int nvmlDeviceGetMemoryInfo_v2(void *, Memory2 *memory) {
  memory->total = rig::card_total();
  memory->used = rig::card_used();
  memory->reserved = 0;
  memory->free = memory->total - memory->used;
  return success;
}

int nvmlDeviceGetComputeRunningProcesses(void *, unsigned *count, Process1 *rows) {
  return list_processes(count, rows);
}

int nvmlDeviceGetComputeRunningProcesses_v2(void *, unsigned *count, Process *rows) {
  return list_processes(count, rows);
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *, unsigned *count, Process *rows) {
  return list_processes(count, rows);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *, unsigned *count, Process *) {
  *count = 0;
  return success;
}

// Nothing runs on the card, so how busy it is can only be made up: RIG_NVML_ACTIVITY holds readings as
// utilization:milliwatts:MHz:celsius, separated by commas.  Each question is answered from the next one of its own kind,
// the last for good.  Without the knob the card does not tell.
int nvmlDeviceGetUtilizationRates(void *, Utilization *rates) {
  static size_t asked = 0;
  rates->memory = 0;
  return next_reading(0, asked, &rates->gpu);
}

int nvmlDeviceGetPowerUsage(void *, unsigned *milliwatts) {
  static size_t asked = 0;
  return next_reading(1, asked, milliwatts);
}

int nvmlDeviceGetClockInfo(void *, unsigned, unsigned *megahertz) {
  static size_t asked = 0;
  return next_reading(2, asked, megahertz);
}

int nvmlDeviceGetTemperature(void *, unsigned, unsigned *celsius) {
  static size_t asked = 0;
  return next_reading(3, asked, celsius);
}

// Asked for by PyTorch when it looks for a way to share memory between cards.
int nvmlDeviceGetNvLinkRemoteDeviceType(void *, unsigned, void *) { return not_supported; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *, unsigned, void *) { return not_supported; }
int nvmlDeviceGetGpuFabricInfoV(void *, void *) { return not_supported; }
}
