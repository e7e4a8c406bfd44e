#include "state/param_hash.hpp"

#include <algorithm>

#include "optimizer/agreement.hpp"
#include "state/element_hash.hpp"

namespace muonrt {

namespace {

constexpr int64_t kElements = 1 << 18;  // copied at once
constexpr int64_t kParams = 4096;       // exchanged at once

uint64_t share_of_hash(const LocalPiece& piece, DeviceCopy& copy) {
  const int64_t size = bytes_of(piece.tensor);
  std::vector<unsigned char> values(static_cast<size_t>(kElements * size));
  uint64_t out = 0;
  for (const Stretch& s : piece.extent.part(piece.first, piece.last).stretches()) {
    for (int64_t done = 0; done < s.count; done += kElements) {
      const int64_t count = std::min(kElements, s.count - done);
      const int64_t at = piece.first + s.local + done;
      copy.read(values.data(), static_cast<const char*>(piece.data) + at * size, count * size);
      const auto part = std::span(values).first(static_cast<size_t>(count * size));
      out += hash_elements(piece.tensor.name, s.element + done, part, size);
    }
  }
  return out;
}

}  // namespace

std::vector<uint64_t> param_hashes(Optimizer& optimizer) {
  const auto& params = optimizer.settings().params;
  std::vector<uint64_t> mine(params.size()), out(params.size());
  together(optimizer.comm(), [&] {
    DeviceCopy copy(optimizer.device(), optimizer.settings().timeout_ms);
    for (const LocalPiece& piece : local_pieces(optimizer, true)) {
      if (piece.tensor.kind != StateTensor::kParam) continue;
      const auto p = static_cast<size_t>(piece.tensor.param);
      mine[p] += share_of_hash(piece, copy);
    }
  });
  const auto world = static_cast<size_t>(optimizer.comm().size());
  for (int64_t begin = 0; begin < std::ssize(mine); begin += kParams) {
    const auto count = static_cast<size_t>(std::min(kParams, std::ssize(mine) - begin));
    std::vector<uint64_t> all(count * world);
    optimizer.comm().allgather(&mine[static_cast<size_t>(begin)], all.data(),
                               static_cast<int64_t>(count * sizeof(uint64_t)));
    for (size_t i = 0; i < all.size(); ++i) out[static_cast<size_t>(begin) + i % count] += all[i];
  }
  return out;
}

}  // namespace muonrt
