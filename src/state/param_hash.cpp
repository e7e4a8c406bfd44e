#include "state/param_hash.hpp"

#include <algorithm>

#include "optimizer/agreement.hpp"
#include "state/element_hash.hpp"

namespace muonrt {

namespace {

constexpr int64_t kElements = 1 << 18;  // copied at a time
constexpr int64_t kParams = 4096;       // exchanged at a time

/// @param values  room for kElements of four bytes.
uint64_t share_of_hash(const StateShard& shard, DeviceCopy& copy,
                       std::vector<unsigned char>& values) {
  const int64_t size = bytes_of(shard.tensor);
  uint64_t out = 0;
  for (const Stretch& s : shard.extent.part(shard.write_begin, shard.write_end).stretches()) {
    for (int64_t done = 0; done < s.count; done += kElements) {
      const int64_t count = std::min(kElements, s.count - done);
      const int64_t at = shard.write_begin + s.local + done;
      copy.read(values.data(), static_cast<const char*>(shard.data) + at * size, count * size);
      const auto part = std::span(values).first(static_cast<size_t>(count * size));
      out += hash_elements(shard.tensor.name, s.element + done, part, size);
    }
  }
  return out;
}

}  // namespace

std::vector<uint64_t> param_hashes(Optimizer& optimizer) {
  const auto& params = optimizer.settings().params;
  const auto world = static_cast<size_t>(optimizer.comm().size());
  std::vector<uint64_t> mine, out, all;
  run_collectively(optimizer.comm(), [&] {
    mine.resize(params.size());
    out.resize(params.size());
    all.resize(std::min(params.size(), static_cast<size_t>(kParams)) * world);
    DeviceCopy copy(optimizer.device(), optimizer.settings().timeout_ms);
    std::vector<unsigned char> values(kElements * 4);
    for (const StateShard& shard : local_state_shards(optimizer, true)) {
      if (shard.tensor.kind != StateTensor::kParam) continue;
      const auto p = static_cast<size_t>(shard.tensor.param);
      mine[p] += share_of_hash(shard, copy, values);
    }
  });
  for (int64_t begin = 0; begin < std::ssize(mine); begin += kParams) {
    const auto count = static_cast<size_t>(std::min(kParams, std::ssize(mine) - begin));
    optimizer.comm().allgather(&mine[static_cast<size_t>(begin)], all.data(),
                               static_cast<int64_t>(count * sizeof(uint64_t)));
    for (size_t i = 0; i < count * world; ++i)
      out[static_cast<size_t>(begin) + i % count] += all[i];
  }
  return out;
}

}  // namespace muonrt
