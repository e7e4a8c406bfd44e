#include "base/sha256.hpp"

#include <catch2/catch.hpp>

using muonrt::hex;
using muonrt::Sha256;

namespace {

std::string of(std::string_view text) {
  Sha256 sha;
  sha.update(text);
  return hex(sha.digest());
}

}  // namespace

TEST_CASE("sha256: the published digests of short messages", "[unit][base]") {
  // FIPS 180-2, appendix B, and the empty message.
  CHECK(of("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(of("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(of(std::string(1000000, 'a')) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("sha256: pieces of any length give the digest of the whole", "[unit][base]") {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>('a' + i % 23);
  for (const size_t piece : {1u, 7u, 55u, 63u, 64u, 65u, 119u, 128u}) {
    Sha256 sha;
    for (size_t at = 0; at < text.size(); at += piece) {
      sha.update(std::string_view(text).substr(at, piece));
    }
    CHECK(hex(sha.digest()) == of(text));
  }
}
