#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace muonrt {

/// Computes the 64-bit FNV-1a hash of a sequence of values. It is equal on every rank and in every
/// build.
class Hash {
 public:
  void bytes(std::string_view text) {
    for (const char c : text) byte(static_cast<unsigned char>(c));
    value(static_cast<int64_t>(text.size()));
  }
  void value(int64_t v) {
    for (int i = 0; i < 8; ++i)
      byte(static_cast<unsigned char>(static_cast<uint64_t>(v) >> (8 * i)));
  }
  void value(double v) { value(std::bit_cast<int64_t>(v)); }
  uint64_t digest() const { return state_; }

 private:
  void byte(unsigned char b) { state_ = (state_ ^ b) * 0x100000001b3ull; }
  uint64_t state_ = 0xcbf29ce484222325ull;
};

}  // namespace muonrt
