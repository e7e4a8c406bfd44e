#pragma once

#include <cstring>

#include "base/error.hpp"

namespace muonrt::api {

// What is promised of growable structs is in muonrt/base.h. Before 1.0 every struct is in its first
// version, which grows; the size it has then stays the smallest.

/// More than any version will have: a struct that was not filled, and whose tail must not be read.
constexpr uint32_t kMaxStructBytes = 1u << 16;

/// Errors: INVALID_ARGUMENT for a size that no version of the struct can have.
inline uint32_t struct_size_of(const void* given, const char* who, size_t first_version) {
  uint32_t size = 0;
  std::memcpy(&size, given, sizeof size);
  MUONRT_REQUIRE(size >= first_version && size % 4 == 0 && size <= kMaxStructBytes,
                 Status::kInvalidArgument, who, ": struct_size is ", size,
                 " (a multiple of 4 from ", first_version, " to ", kMaxStructBytes,
                 "); fill the struct with its _init function first, by headers as old as the "
                 "library or newer");
  return size;
}

/// A field without a meaning yet, which a later version may give it one.
inline void require_zero(int32_t value, const char* who, const char* field) {
  MUONRT_REQUIRE(value == 0, Status::kInvalidArgument, who, ": ", field, " is ", value,
                 " (nothing is known by that name yet); fill the struct with its _init function");
}

/// The caller's struct in our version's shape.
template <class T>
T read_struct(const void* given, const T& defaults, const char* who) {
  const uint32_t size = struct_size_of(given, who, sizeof(T));
  for (size_t i = sizeof(T); i < size; ++i) {
    MUONRT_REQUIRE(static_cast<const unsigned char*>(given)[i] == 0, Status::kInvalidArgument, who,
                   ": struct_size is ", size, " (this library knows ", sizeof(T),
                   " bytes, and byte ", i, " behind them is set); use a newer library");
  }
  T out = defaults;
  std::memcpy(&out, given, size < sizeof(T) ? size : sizeof(T));
  out.struct_size = sizeof(T);
  if constexpr (requires { out.reserved; }) require_zero(out.reserved, who, "reserved");
  if constexpr (requires { out.reserved_2; }) require_zero(out.reserved_2, who, "reserved_2");
  return out;
}

/// Writes `value` back, no further than the caller's struct reaches; its struct_size stays.
template <class T>
void write_struct(void* to, const T& value, const char* who) {
  const uint32_t size = struct_size_of(to, who, sizeof(T));
  constexpr size_t kHead = sizeof(uint32_t);
  const size_t bytes = size < sizeof(T) ? size : sizeof(T);
  std::memcpy(static_cast<char*>(to) + kHead, reinterpret_cast<const char*>(&value) + kHead,
              bytes - kHead);
}

}  // namespace muonrt::api
