#include "base/sha256.hpp"

#include <catch2/catch.hpp>
#include <string>

#include "base/hmac.hpp"

using muonrt::hex;
using muonrt::Sha256;
using namespace muonrt;

namespace {

std::string of(std::string_view text) {
  Sha256 sha;
  sha.update(text);
  return hex(sha.digest());
}

}  // namespace

TEST_CASE("sha256: the published digests of short messages", "[unit][base]") {
  // The messages of FIPS 180-2, appendix B, and the empty message.
  CHECK(of("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(of("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(of(std::string(1000000, 'a')) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("sha256: updates of any length give the digest of the whole text", "[unit][base]") {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>('a' + i % 23);
  for (const size_t length : {1u, 7u, 55u, 63u, 64u, 65u, 119u, 128u}) {
    Sha256 sha;
    for (size_t at = 0; at < text.size(); at += length) {
      sha.update(std::string_view(text).substr(at, length));
    }
    CHECK(hex(sha.digest()) == of(text));
  }
}

namespace {

std::string hmac(const std::string& key, const std::string& message) {
  return hex(hmac_sha256({key}, {message}));
}

}  // namespace

// The digests are those of test cases 1, 2, 3 and 6 (a key longer than a block) in RFC 4231.
TEST_CASE("hmac_sha256: the published digests", "[unit][base]") {
  CHECK(hmac(std::string(20, '\x0b'), "Hi There") ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(hmac("Jefe", "what do ya want for nothing?") ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(hmac(std::string(20, '\xaa'), std::string(50, '\xdd')) ==
        "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  CHECK(hmac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First") ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST_CASE("equal_in_constant_time: one bit anywhere makes a difference", "[unit][base]") {
  const Sha256::Digest a{};
  CHECK(equal_in_constant_time(a, Sha256::Digest{}));
  for (size_t i = 0; i < a.size(); ++i) {
    Sha256::Digest b{};
    b[i] = 0x10;
    CHECK_FALSE(equal_in_constant_time(a, b));
  }
}
