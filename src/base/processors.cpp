#include "base/processors.hpp"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/hash.hpp"

namespace muonrt {

namespace {

constexpr int kMaxThreads = 256;

/// Reads the first line of a file into `line`. Returns the length of the line, or 0 if the file
/// cannot be read.
size_t read_line(const char* path, char (&line)[512]) noexcept {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path, "re"), std::fclose);
  if (!file || !std::fgets(line, sizeof line, file.get())) return 0;
  const size_t length = std::strcspn(line, "\n");
  line[length] = '\0';
  return length;
}

/// The processor quota of a control group. The hash of the group's directory identifies the group.
struct Quota {
  int32_t processors = 0;
  uint64_t group = 0;
};

/// Computes the processor quota of the group in `directory` as quota / period. If the quota is
/// smaller than `least`, stores it in `least`.
void tighten(Quota& least, const char* directory, double quota, double period) noexcept {
  struct stat about {};
  if (!(quota > 0) || !(period > 0) || quota / period >= kMaxThreads) return;
  const int32_t processors = std::max(1, static_cast<int32_t>(quota / period + 0.5));
  if (least.processors > 0 && least.processors <= processors) return;
  least = {processors, ::stat(directory, &about) == 0 ? uint64_t{about.st_ino} : 0};
}

/// Like tighten(), but for control groups of version 2. Their file `cpu.max` contains the quota, or
/// "max" for no quota, followed by the period.
void tighten_v2(Quota& least, const char* directory) noexcept {
  char path[640], line[512];
  std::snprintf(path, sizeof path, "%s/cpu.max", directory);
  if (read_line(path, line) == 0) return;
  char* end = line;
  const double quota = std::strtod(line, &end);  // 0 if the text is "max"
  tighten(least, directory, quota, std::strtod(end, nullptr));
}

// In a container, the mount point is the process's own control group. Outside a container, the
// group is a directory below the mount point, and the quotas of its parents also apply.
Quota quota_of_group() noexcept {
  char line[512], path[600];
  Quota least;
  tighten_v2(least, "/sys/fs/cgroup");
  if (read_line("/proc/self/cgroup", line) > 0 && std::strncmp(line, "0::/", 4) == 0) {
    for (char* group = line + 3; group[0] != '\0' && group[1] != '\0';) {
      std::snprintf(path, sizeof path, "/sys/fs/cgroup%s", group);
      tighten_v2(least, path);
      *std::strrchr(group, '/') = '\0';
    }
  }
  constexpr const char* kVersion1 = "/sys/fs/cgroup/cpu";
  char period[512];
  std::snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", kVersion1);
  if (read_line(path, line) > 0) {
    std::snprintf(path, sizeof path, "%s/cpu.cfs_period_us", kVersion1);
    if (read_line(path, period) > 0)
      tighten(least, kVersion1, std::strtod(line, nullptr), std::strtod(period, nullptr));
  }
  return least;
}

uint64_t hash_of(std::string_view bytes) noexcept {
  Hash hash;
  hash.bytes(bytes);
  return hash.digest();
}

uint64_t hash_of_machine() noexcept {
  char name[512];
  size_t length = read_line("/proc/sys/kernel/random/boot_id", name);
  if (length == 0 && ::gethostname(name, sizeof name - 1) == 0) {
    name[sizeof name - 1] = '\0';
    length = std::strlen(name);
  }
  return hash_of({name, length});
}

}  // namespace

Processors own_processors() noexcept {
  Processors out;
  out.machine = hash_of_machine();
  const Quota quota = quota_of_group();
  out.group = quota.group;
  out.quota = quota.processors;
  cpu_set_t set;
  CPU_ZERO(&set);
  // If the system has more processors than `set` can hold, the call fails, and the number of online
  // processors is used.
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    out.count = std::max(1, CPU_COUNT(&set));
    out.mask = hash_of({reinterpret_cast<const char*>(&set), sizeof set});
  } else {
    out.count = static_cast<int32_t>(std::clamp(::sysconf(_SC_NPROCESSORS_ONLN), 1L, 1L << 20));
  }
  return out;
}

int threads_of(std::span<const Processors> by_rank, int rank) noexcept {
  const Processors& own = by_rank[static_cast<size_t>(rank)];
  int64_t with_mask = 0, in_group = 0;
  for (const Processors& other : by_rank) {
    if (other.machine != own.machine) continue;
    with_mask += other.mask == own.mask;
    in_group += other.group == own.group;
  }
  int64_t threads = own.count / with_mask;
  if (own.quota > 0) threads = std::min(threads, own.quota / in_group);
  return static_cast<int>(std::clamp<int64_t>(threads, 1, kMaxThreads));
}

}  // namespace muonrt
