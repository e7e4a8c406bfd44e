#pragma once
// Replaces <catch2/catch.hpp> if Catch2 has version 3. Defines the version 2 names that the tests
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
