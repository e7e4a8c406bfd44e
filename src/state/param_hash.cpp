#include "state/param_hash.hpp"

#include <algorithm>
#include <cstring>

#include "backend/health.hpp"
#include "base/hash.hpp"
#include "optimizer/agreement.hpp"

namespace muonrt {

namespace {

constexpr int64_t kElements = 1 << 18;  // copied at once
constexpr int64_t kParams = 4096;       // exchanged at once

template <class Bits>
uint64_t sum_of(std::span<const unsigned char> from, uint64_t first) {
  uint64_t out = 0;
  for (size_t i = 0; i < from.size() / sizeof(Bits); ++i) {
    Bits bits;
    std::memcpy(&bits, from.data() + i * sizeof bits, sizeof bits);
    out += scrambled(scrambled(first + i) ^ bits);
  }
  return out;
}

uint64_t share_of_hash(const LocalPiece& piece, DeviceCopy& copy) {
  const int64_t size = bytes_of(piece.tensor);
  std::vector<unsigned char> values(static_cast<size_t>(kElements * size));
  uint64_t out = 0;
  for (const Stretch& s : piece.extent.part(piece.first, piece.last).stretches()) {
    for (int64_t done = 0; done < s.count; done += kElements) {
      const int64_t count = std::min(kElements, s.count - done);
      const int64_t at = piece.first + s.local + done;
      copy.read(values.data(), static_cast<const char*>(piece.data) + at * size, count * size);
      out += hash_of_elements(piece.tensor.name, s.element + done,
                              std::span(values).first(static_cast<size_t>(count * size)), size);
    }
  }
  return out;
}

}  // namespace

uint64_t hash_of_elements(const std::string& name, int64_t element,
                          std::span<const unsigned char> values, int64_t size) {
  Hash hash;
  hash.bytes(name);
  const uint64_t first = hash.digest() + static_cast<uint64_t>(element);
  return size == 4 ? sum_of<uint32_t>(values, first) : sum_of<uint16_t>(values, first);
}

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
