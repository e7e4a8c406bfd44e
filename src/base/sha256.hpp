#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace muonrt {

/// Computes the SHA-256 digest of a sequence of bytes. Source: FIPS 180-4, sections 4.1.2, 5.1.1
/// and 6.2.
class Sha256 {
 public:
  using Digest = std::array<unsigned char, 32>;

  void update(const void* data, size_t bytes);
  void update(std::string_view text) { update(text.data(), text.size()); }
  /// Returns the digest of all bytes added so far. Do not call update() afterwards.
  Digest digest();

 private:
  void block(const unsigned char* data);

  std::array<uint32_t, 8> state_ = {0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au,
                                    0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};
  std::array<unsigned char, 64> pending_{};
  size_t pending_bytes_ = 0;
  uint64_t bytes_ = 0;
};

/// Returns the digest as lower-case hexadecimal digits.
std::string hex(const Sha256::Digest& digest);

}  // namespace muonrt
