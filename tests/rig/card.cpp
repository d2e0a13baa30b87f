// The card's memory in a file; see card.h. Linked into the runtime and into NVML: where both are loaded the dynamic
// linker gives both the same functions, and where only NVML is, it reads the same file.
#include "card.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <mutex>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace rig {
namespace {

constexpr int slots = 256;
constexpr int guard = slots;  // the byte whose lock means "someone is changing the slots"

struct File {
  long long total;
  Holder slot[slots];
};

int open_card() {
  std::string path = text("RIG_CARD", "");
  if (path.empty()) refuse("RIG_CARD does not name the card's file");
  int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) refuse("cannot open the card " + path);
  return fd;
}

// Locks of the open file, not of the process (fcntl(2), "open file description locks"): unlike the older kind they
// survive the closing of another descriptor of the same file, and NVML and the runtime exclude each other.
struct flock one_byte(int byte, short kind) {
  struct flock lock = {};
  lock.l_type = kind;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return lock;
}

void lock_byte(int fd, int byte) {
  struct flock lock = one_byte(byte, F_WRLCK);
  while (fcntl(fd, F_OFD_SETLKW, &lock) != 0)
    if (errno != EINTR) refuse("cannot lock the card");
}

void unlock_byte(int fd, int byte) {
  struct flock lock = one_byte(byte, F_UNLCK);
  if (fcntl(fd, F_OFD_SETLK, &lock) != 0) refuse("cannot unlock the card");
}

bool is_locked(int fd, int byte) {
  struct flock lock = one_byte(byte, F_WRLCK);
  if (fcntl(fd, F_OFD_GETLK, &lock) != 0) refuse("cannot ask for the card's locks");
  return lock.l_type != F_UNLCK;
}

File *map(int fd) {
  if (ftruncate(fd, sizeof(File)) != 0) refuse("cannot size the card");
  void *at = mmap(nullptr, sizeof(File), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) refuse("cannot map the card");
  return static_cast<File *>(at);
}

std::mutex busy;

// Alone with the card for as long as it lives; slots of the dead are cleared on the way in. A fork must not fall
// inside: the child would inherit the guard and never let go, hence pthread_atfork.
class Alone {
public:
  Alone() {
    static const int registered = pthread_atfork([] { busy.lock(); }, [] { busy.unlock(); }, [] { busy.unlock(); });
    if (registered != 0) refuse("pthread_atfork");
    busy.lock();
    fd_ = open_card();
    lock_byte(fd_, guard);
    static File *const mapped = map(fd_);
    file = mapped;
    if (file->total == 0) file->total = number("RIG_BYTES", 0);
    if (file->total <= 0 || file->total != number("RIG_BYTES", 0))
      refuse("RIG_BYTES is not the size that this card was made with");
    for (int i = 0; i < slots; i++)
      if (file->slot[i].pid != 0 && !is_locked(fd_, i)) file->slot[i] = {};
  }
  ~Alone() {
    unlock_byte(fd_, guard);  // closing alone would not do: the mapping keeps the first file open
    close(fd_);
    busy.unlock();
  }
  Alone(const Alone &) = delete;
  Alone &operator=(const Alone &) = delete;

  long long used() const {
    long long sum = 0;
    for (const Holder &holder : file->slot) sum += holder.bytes;
    return sum;
  }

  Holder &mine() {
    static int index = -1;
    if (index < 0) {
      for (index = 0; index < slots && file->slot[index].pid != 0; index++) {
      }
      if (index == slots) refuse("more processes than the card has slots");
      lock_byte(open_card(), index);  // left open on purpose: this descriptor is what holds the memory
      file->slot[index] = {getpid(), 0};
    }
    return file->slot[index];
  }

  File *file;

private:
  int fd_;
};

}  // namespace

long long card_total() { return Alone().file->total; }

long long card_used() { return Alone().used(); }

std::vector<Holder> card_holders() {
  Alone alone;
  std::vector<Holder> found;
  for (const Holder &holder : alone.file->slot)
    if (holder.bytes > 0) found.push_back(holder);
  return found;
}

bool take(long long bytes) {
  Alone alone;
  if (alone.used() + bytes > alone.file->total) return false;
  alone.mine().bytes += bytes;
  return true;
}

void give(long long bytes) {
  Alone alone;
  alone.mine().bytes -= bytes;
}

long long number(const char *knob, long long fallback) {
  std::string value = text(knob, "");
  if (value.empty()) return fallback;
  char *end = nullptr;
  errno = 0;
  long long parsed = strtoll(value.c_str(), &end, 10);
  if (errno != 0 || *end != '\0' || parsed < 0) refuse(std::string(knob) + " is no number: " + value);
  return parsed;
}

std::string text(const char *knob, const char *fallback) {
  const char *value = getenv(knob);
  return value == nullptr ? fallback : value;
}

void refuse(const std::string &reason) {
  fprintf(stderr, "rig: %s\n", reason.c_str());
  _exit(70);  // EX_SOFTWARE of sysexits.h
}

}  // namespace rig
