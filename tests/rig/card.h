// The card's memory: one number that every process using the card draws on.
//
// A card is a file (RIG_CARD) of fixed size with one slot a process. A process that uses the card holds a lock on its
// slot's byte through a file it keeps open, as a CUDA process keeps /dev/nvidia0 open; the kernel drops the lock when
// the last copy of that file is closed, however the process ends. A slot without a lock is therefore memory that came
// back. A forked child keeps the lock of its parent alive, and with it the memory: on a real machine, too, a data
// loader left behind holds its dead parent's memory.
#pragma once

#include <string>
#include <vector>

namespace rig {

struct Holder {
  int pid;
  long long bytes;
};

constexpr long long granule = 2 << 20;  // the driver hands out memory in pieces of 2 MiB

long long card_total();
long long card_used();
std::vector<Holder> card_holders();

// Takes bytes for this process; false when the card has fewer left.
bool take(long long bytes);
void give(long long bytes);

constexpr long long in_granules(long long bytes) { return (bytes + granule - 1) / granule * granule; }

// Knobs. A knob that is not set has the fallback; one that cannot be read ends the process, so that no test runs on
// another card than it asked for.
long long number(const char *knob, long long fallback);
std::string text(const char *knob, const char *fallback);
[[noreturn]] void refuse(const std::string &reason);

}  // namespace rig
