#include "base/hmac.hpp"

#include <cstring>

namespace muonrt {

Sha256::Digest hmac_sha256(std::string_view key, std::string_view message) {
  std::array<unsigned char, 64> inner{}, outer{};
  if (key.size() <= inner.size()) {
    std::memcpy(inner.data(), key.data(), key.size());
  } else {
    Sha256 hash;
    hash.update(key);
    const Sha256::Digest shorter = hash.digest();
    std::memcpy(inner.data(), shorter.data(), shorter.size());
  }
  for (size_t i = 0; i < inner.size(); ++i) {
    outer[i] = inner[i] ^ 0x5c;
    inner[i] ^= 0x36;
  }
  Sha256 first, second;
  first.update(inner.data(), inner.size());
  first.update(message);
  const Sha256::Digest digest = first.digest();
  second.update(outer.data(), outer.size());
  second.update(digest.data(), digest.size());
  return second.digest();
}

bool equal_in_constant_time(const Sha256::Digest& a, const Sha256::Digest& b) {
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= unsigned{a[i]} ^ unsigned { b[i] };
  return difference == 0;
}

}  // namespace muonrt
