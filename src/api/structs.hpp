#pragma once

#include <cstring>

#include "base/error.hpp"

namespace muonrt::api {

// muonrt/base.h describes how structs grow. Before version 1.0, a struct is accepted only with its
// current size or a larger one. Starting with version 1.0, the size in version 1.0 is the smallest
// size that is accepted.

/// A limit above the size of every struct in every version. If struct_size is larger, the struct
/// was not initialized and must not be read.
constexpr uint32_t kMaxStructBytes = 1u << 16;

/// Returns the struct_size. Errors: INVALID_ARGUMENT if no version can have this size.
inline uint32_t struct_size_of(const void* given, const char* who, size_t first_version) {
  uint32_t size = 0;
  std::memcpy(&size, given, sizeof size);
  MUONRT_REQUIRE(
      size >= first_version && size % 4 == 0 && size <= kMaxStructBytes, Status::kInvalidArgument,
      who, ": struct_size is ", size, ", but must be a multiple of 4 from ", first_version, " to ",
      kMaxStructBytes,
      "; initialize the struct with its _init macro, from headers that are not older than "
      "the library");
  return size;
}

/// Checks that a reserved field is 0, because a later version may use the field.
inline void require_zero(int32_t value, const char* who, const char* field) {
  MUONRT_REQUIRE(value == 0, Status::kInvalidArgument, who, ": ", field, " is ", value,
                 ", but must be 0; initialize the struct with its _init macro");
}

/// Copies the caller's struct, which may be from a newer or older version, to a struct of this
/// version.
template <class T>
T read_struct(const void* given, const T& defaults, const char* who) {
  const uint32_t size = struct_size_of(given, who, sizeof(T));
  for (size_t i = sizeof(T); i < size; ++i) {
    MUONRT_REQUIRE(static_cast<const unsigned char*>(given)[i] == 0, Status::kInvalidArgument, who,
                   ": struct_size is ", size, ", but this library knows only ", sizeof(T),
                   " bytes, and byte ", i, " is not 0; use a newer library");
  }
  T out = defaults;
  std::memcpy(&out, given, size < sizeof(T) ? size : sizeof(T));
  out.struct_size = sizeof(T);
  if constexpr (requires { out.reserved; }) require_zero(out.reserved, who, "reserved");
  if constexpr (requires { out.reserved_2; }) require_zero(out.reserved_2, who, "reserved_2");
  return out;
}

/// Copies `value` to the caller's struct, except the struct_size and fields beyond the end of the
/// caller's struct.
template <class T>
void write_struct(void* to, const T& value, const char* who) {
  const uint32_t size = struct_size_of(to, who, sizeof(T));
  constexpr size_t kHead = sizeof(uint32_t);
  const size_t bytes = size < sizeof(T) ? size : sizeof(T);
  std::memcpy(static_cast<char*>(to) + kHead, reinterpret_cast<const char*>(&value) + kHead,
              bytes - kHead);
}

}  // namespace muonrt::api
