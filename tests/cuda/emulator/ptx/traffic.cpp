#include "ptx/traffic.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "block.hpp"

namespace emulator::ptx::traffic {

namespace {

constexpr uint64_t kSector = 32, kBankBytes = 4, kBanks = 32;
constexpr size_t kKinds = 3;

/// Counts for one kind of access in a kernel: the warps' requests, the actual traffic, and the
/// minimum traffic.
struct Sum {
  uint64_t requests = 0, bytes = 0, units = 0, least = 0;
};
struct Kernel {
  uint64_t launches = 0, instructions = 0;
  std::array<Sum, kKinds> sums;
};

/// The counts of all kernels in the program, and the file to which they are written when the
/// program exits.
struct Book {
  std::mutex mutex;
  std::map<std::string, Kernel> kernels;

  ~Book() {
    std::FILE* file = std::fopen(std::getenv("MUONRT_EMULATED_TRAFFIC"), "w");
    if (!file) return;
    const auto number = [](uint64_t n) { return static_cast<unsigned long long>(n); };
    constexpr const char* kNames[kKinds] = {"load", "store", "shared"};
    std::fputc('{', file);
    const char* comma = "";
    for (const auto& [name, k] : kernels) {
      std::fprintf(file, "%s\n\"%s\": {\"launches\": %llu, \"instructions\": %llu", comma,
                   name.c_str(), number(k.launches), number(k.instructions));
      for (size_t i = 0; i < kKinds; ++i)
        std::fprintf(file,
                     ", \"%s\": {\"requests\": %llu, \"bytes\": %llu, \"units\": %llu, "
                     "\"least\": %llu}",
                     kNames[i], number(k.sums[i].requests), number(k.sums[i].bytes),
                     number(k.sums[i].units), number(k.sums[i].least));
      std::fputc('}', file);
      comma = ",";
    }
    std::fputs("\n}\n", file);
    std::fclose(file);
  }
};
Book& book() {
  static Book all;
  return all;
}

struct Access {
  unsigned lane;
  uint64_t address;
};
/// The accesses that the lanes of a warp make with one instruction in one iteration.
struct Request {
  const Function* function = nullptr;
  Kind kind = Kind::kLoad;
  size_t bytes = 0;  // bytes that each lane accesses
  std::vector<Access> accesses;
};

/// Returns the number of distinct segments of memory that contain the bytes.
uint64_t sectors(const Request& r) {
  std::set<uint64_t> touched;
  for (const Access& p : r.accesses)
    for (uint64_t s = p.address / kSector; s <= (p.address + r.bytes - 1) / kSector; ++s)
      touched.insert(s);
  return touched.size();
}
/// Returns the number of distinct bytes divided by the size of a sector, rounded up.
uint64_t least_sectors(const Request& r) {
  std::set<uint64_t> places;
  for (const Access& p : r.accesses) places.insert(p.address);
  return (places.size() * r.bytes + kSector - 1) / kSector;
}

/// Returns the number of wavefronts. The lanes form groups that access at most 128 bytes: the whole
/// warp, halves, or quarters. A group needs as many wavefronts as there are distinct words in the
/// bank with the most distinct words.
uint64_t wavefronts(const Request& r) {
  const size_t together = r.bytes <= 4 ? 32 : 128 / r.bytes;
  uint64_t all = 0;
  for (size_t first = 0; first < 32; first += together) {
    std::map<uint64_t, std::set<uint64_t>> words;  // the distinct words in each bank
    for (const Access& p : r.accesses) {
      if (p.lane < first || p.lane >= first + together) continue;
      for (uint64_t w = p.address / kBankBytes; w <= (p.address + r.bytes - 1) / kBankBytes; ++w)
        words[w % kBanks].insert(w);
    }
    uint64_t most = 0;
    for (const auto& [bank, of_bank] : words) most = std::max<uint64_t>(most, of_bank.size());
    all += most;
  }
  return all;
}
uint64_t least_wavefronts(const Request& r) {
  const size_t together = r.bytes <= 4 ? 32 : 128 / r.bytes;
  std::set<size_t> groups;
  for (const Access& p : r.accesses) groups.insert(p.lane / together);
  return groups.size();
}

/// Returns the name of a kernel without its namespaces and arguments.
std::string short_name(const Function& f) {
  const std::string& name = f.name;
  const size_t end = name.find("_kernel");
  size_t begin = end;
  while (begin > 0 && (std::islower(static_cast<unsigned char>(name[begin - 1])) != 0 ||
                       name[begin - 1] == '_' ||
                       (std::isdigit(static_cast<unsigned char>(name[begin - 1])) != 0 &&
                        std::isalpha(static_cast<unsigned char>(name[begin - 2])) != 0)))
    --begin;
  std::string made = end == std::string::npos ? name : name.substr(begin, end - begin);
  const size_t arguments = name.find('I', end);
  if (arguments != std::string::npos && arguments == end + 7)
    made += " " + name.substr(arguments, name.find("Evv", arguments) - arguments).substr(0, 24);
  return made;
}

void close(const Request& r) {
  const bool shared = r.kind == Kind::kShared;
  const uint64_t units = shared ? wavefronts(r) : sectors(r);
  const uint64_t least = shared ? least_wavefronts(r) : least_sectors(r);
  const std::lock_guard lock(book().mutex);
  Sum& sum = book().kernels[short_name(*r.function)].sums[static_cast<size_t>(r.kind)];
  ++sum.requests;
  sum.bytes += r.bytes * r.accesses.size();
  sum.units += units;
  sum.least += least;
}

/// The requests of the running cluster.
struct Open {
  uint64_t cluster = 0;
  size_t ended = 0;                                          // number of threads that have ended
  std::unordered_map<uint64_t, Request> requests;            // by warp, instruction and iteration
  std::vector<std::unordered_map<size_t, uint32_t>> rounds;  // by thread and instruction

  void finish() {
    for (const auto& [key, r] : requests) close(r);
    requests.clear();
    rounds.clear();
  }
};
Open& open() {
  static thread_local Open here;
  if (here.cluster != cluster_number()) {
    here.finish();
    here.ended = 0;
    here.cluster = cluster_number();
  }
  return here;
}

}  // namespace

bool counts() {
  static const bool asked = std::getenv("MUONRT_EMULATED_TRAFFIC") != nullptr;
  return asked;
}

void note(const Thread& t, Kind kind, uint64_t address, size_t bytes) {
  if (!counts()) return;
  Open& o = open();
  const size_t me = thread_in_cluster();
  if (o.rounds.size() <= me) o.rounds.resize(threads_in_cluster());
  const uint64_t round = o.rounds[me][t.next]++;
  Request& r = o.requests[round << 32 | (me / 32) << 20 | t.next];
  r.function = t.function;
  r.kind = kind;
  r.bytes = bytes;
  r.accesses.push_back({static_cast<unsigned>(me % 32), address});
}

void note_launch(const Function& f) {
  if (!counts()) return;
  const std::lock_guard lock(book().mutex);
  ++book().kernels[short_name(f)].launches;
}

void note_end(const Function& f, uint64_t instructions) {
  if (!counts()) return;
  {
    const std::lock_guard lock(book().mutex);
    book().kernels[short_name(f)].instructions += instructions;
  }
  if (++open().ended == threads_in_cluster()) open().finish();
}

}  // namespace emulator::ptx::traffic
