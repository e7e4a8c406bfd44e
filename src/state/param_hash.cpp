#include "state/param_hash.hpp"

#include <algorithm>

#include "optimizer/agreement.hpp"
#include "state/conversions.hpp"
#include "state/element_hash.hpp"

namespace muonrt {

namespace {

constexpr int64_t kElements = 1 << 18;  // number of elements that are copied at a time
constexpr int64_t kParams = 4096;       // number of parameters that are exchanged at a time

/// Returns the term that this rank adds to the hash of a parameter.
/// @param data        The whole shard, or its master weights if `of_masters` is true.
/// @param values      Scratch memory for kElements of four bytes each.
uint64_t share_of_hash(const StateShard& shard, const void* data, bool of_masters, DeviceCopy& copy,
                       std::vector<unsigned char>& values) {
  const int64_t size = of_masters ? 4 : bytes_of(shard.tensor);
  uint64_t out = 0;
  for (const Stretch& s : shard.extent.part(shard.write_begin, shard.write_end).stretches()) {
    for (int64_t done = 0; done < s.count; done += kElements) {
      const int64_t count = std::min(kElements, s.count - done);
      const int64_t at = shard.write_begin + s.local + done;
      copy.read(values.data(), static_cast<const char*>(data) + at * size, count * size);
      const auto part = std::span(values).first(static_cast<size_t>(count * size));
      const auto add = [&](std::span<const unsigned char> elements) {
        out += hash_elements(shard.tensor.name, s.element + done, elements, bytes_of(shard.tensor));
      };
      of_masters ? add(rounded(part, shard.tensor.dtype)) : add(part);
    }
  }
  return out;
}

}  // namespace

std::vector<uint64_t> sum_over_ranks(Comm& comm, const std::vector<uint64_t>& mine) {
  const auto world = static_cast<size_t>(comm.size());
  std::vector<uint64_t> out, all;
  run_collectively(comm, [&] {
    out.resize(mine.size());
    all.resize(std::min(mine.size(), static_cast<size_t>(kParams)) * world);
  });
  for (int64_t begin = 0; begin < std::ssize(mine); begin += kParams) {
    const auto count = static_cast<size_t>(std::min(kParams, std::ssize(mine) - begin));
    comm.allgather(&mine[static_cast<size_t>(begin)], all.data(),
                   static_cast<int64_t>(count * sizeof(uint64_t)));
    for (size_t i = 0; i < count * world; ++i)
      out[static_cast<size_t>(begin) + i % count] += all[i];
  }
  return out;
}

std::vector<uint64_t> param_hashes(Optimizer& optimizer, bool of_masters) {
  std::vector<uint64_t> mine;
  run_collectively(optimizer.comm(), [&] {
    mine.resize(optimizer.settings().params.size());
    std::vector<const void*> masters(mine.size());
    DeviceCopy copy(optimizer.device(), optimizer.settings().timeout_ms);
    std::vector<unsigned char> values(kElements * 4);
    const std::vector<StateShard> shards = local_state_shards(optimizer, true);
    for (const StateShard& shard : shards)
      if (shard.tensor.kind == static_cast<int32_t>(StateKind::kMaster))
        masters[static_cast<size_t>(shard.tensor.param)] = shard.data;
    for (const StateShard& shard : shards) {
      if (shard.tensor.kind != StateTensor::kParam) continue;
      const auto p = static_cast<size_t>(shard.tensor.param);
      const void* const data = of_masters ? masters[p] : shard.data;
      if (data) mine[p] += share_of_hash(shard, data, of_masters, copy, values);
    }
  });
  return sum_over_ranks(optimizer.comm(), mine);
}

}  // namespace muonrt
