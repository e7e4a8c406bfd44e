#pragma once
// Replaces <catch2/catch.hpp> for Catch2 version 3: defines the names of version 2 that the tests
// use.
#include <catch2/catch_all.hpp>
#include <cstdint>
#include <string>

using Catch::Approx;

namespace Catch {

namespace clara = Clara;
using Matchers::EndsWith;
using Matchers::Matches;
using Matchers::Predicate;
using Matchers::StartsWith;

struct TestEventListenerBase : EventListenerBase {
  using EventListenerBase::EventListenerBase;
};
inline auto Contains(const std::string& text) { return Matchers::ContainsSubstring(text); }
inline std::uint32_t rngSeed() { return getSeed(); }

}  // namespace Catch
