#include "base/hmac.hpp"

#include <catch2/catch.hpp>
#include <string>

using namespace muonrt;

namespace {

std::string hmac(const std::string& key, const std::string& message) {
  return hex(hmac_sha256({key}, {message}));
}

}  // namespace

// RFC 4231, test cases 1, 2, 3 and 6 (a key longer than a block).
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
