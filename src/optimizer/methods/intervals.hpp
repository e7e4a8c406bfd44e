#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "backend/device.hpp"
#include "base/dtype.hpp"
#include "base/error.hpp"

namespace muonrt {

/// The memory range [begin, end) of one buffer of a parameter.
struct Interval {
  uintptr_t begin, end;
  const char* what;
  const std::string* name;  // name of the parameter
};

/// Returns the memory range of a buffer. Errors: INVALID_ARGUMENT if `data` is not aligned for the
/// dtype.
inline Interval interval_of(const void* data, int64_t numel, DType dtype, const char* what,
                            const std::string& name) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  MUONRT_REQUIRE(begin % static_cast<uintptr_t>(size_of(dtype)) == 0, Status::kInvalidArgument,
                 "param '", name, "': ", what,
                 " is misaligned, because its address is not a multiple of ", size_of(dtype),
                 " bytes; pass a pointer to whole elements");
  return {begin, begin + static_cast<uintptr_t>(numel * size_of(dtype)), what, &name};
}

/// Checks that the intervals do not overlap. Errors: INVALID_ARGUMENT, with both names.
inline void require_apart(const Interval& given, const Interval& other) {
  const uintptr_t begin = std::max(given.begin, other.begin);
  const uintptr_t end = std::min(given.end, other.end);
  MUONRT_REQUIRE(begin >= end, Status::kInvalidArgument, "param '", *given.name, "': ", given.what,
                 " overlaps the ", other.what, " of param '", *other.name, "' by ", end - begin,
                 " bytes; give every buffer its own memory");
}

/// Checks that the device can access `memory`. Errors: INVALID_ARGUMENT, with the parameter and
/// `what`.
inline void require_reach(const Device& device, const std::string& name, const char* what,
                          const void* memory) {
  MUONRT_REQUIRE(device.reaches(memory), Status::kInvalidArgument, "param '", name, "': ", what,
                 " is not in memory that ", device.describe(),
                 " can access; pass a buffer of that device");
}

}  // namespace muonrt
