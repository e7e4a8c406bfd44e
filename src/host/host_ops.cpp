#include "host/host_ops.hpp"

#include <algorithm>
#include <cstring>

#include "base/checked.hpp"
#include "host/host_stream.hpp"

namespace muonrt::host {

namespace {

constexpr int64_t kPartElements = 1 << 15;  // fewer elements do not justify waking a thread
// Each thread gets multiple parts, so no thread waits long for the others.
constexpr int64_t kPartsPerThread = 4;

}  // namespace

HostOps::HostOps(Device& device, int threads, const TileKernel& kernel, Isa isa)
    : isa_(isa), device_(device), pool_(threads), shared_(kernel) {}

void HostOps::spread(int64_t count, Body body) {
  const std::unique_lock lock(pool_mutex_, std::try_to_lock);
  if (lock.owns_lock()) return pool_.parallel_for(count, body);
  for (int64_t index = 0; index < count; ++index) body(index, 0);
}

void HostOps::spread_range(int64_t elements, Range body) {
  const int64_t most = pool_.threads() > 1 ? pool_.threads() * kPartsPerThread : 1;
  const int64_t parts = std::clamp<int64_t>(elements / kPartElements, 1, most);
  if (parts == 1) return body(0, elements);
  const int64_t part = ceil_div(elements, parts);
  spread(parts, [&](int64_t index, int) {
    const int64_t begin = std::min(elements, index * part);
    body(begin, std::min(elements, begin + part));
  });
}

void HostOps::fill(Stream& stream, void* memory, unsigned char value, int64_t bytes) {
  if (bytes == 0) return;
  host_stream(stream).enqueue(Task([=, this] {
    spread_range(bytes, [&](int64_t begin, int64_t end) {
      std::memset(static_cast<char*>(memory) + begin, value, static_cast<size_t>(end - begin));
    });
  }));
}

void HostOps::copy(Stream& stream, void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return;
  host_stream(stream).enqueue(Task([=, this] {
    spread_range(bytes, [&](int64_t begin, int64_t end) {
      std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin,
                  static_cast<size_t>(end - begin));
    });
  }));
}

void HostOps::cast_vote(Stream& stream, Vote* vote, const Findings* findings, int64_t fingerprint,
                        int64_t orthogonalized, bool local_ok) {
  host_stream(stream).enqueue(Task([=] {
    const bool finite = findings->nonfinite == 0;
    const bool well = local_ok && findings->failed == 0 && findings->first_stale < 0;
    *vote = Vote{.consent = well && finite ? 1 : 0,
                 .fingerprint = fingerprint,
                 .nonfinite = well && !finite ? 1 : 0,
                 .orthogonalized = orthogonalized,
                 .zero_matrices = findings->zero_matrices,
                 .gradient_replicas = findings->gradient_replicas,
                 .weight_replicas = findings->weight_replicas};
    vote->set_factor(findings->factor);
  }));
}

}  // namespace muonrt::host
