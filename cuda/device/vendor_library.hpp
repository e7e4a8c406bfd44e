#pragma once

#include <dlfcn.h>

#include <optional>
#include <span>
#include <string>

#include "base/error.hpp"

namespace muonrt::cuda {

/// A vendor's library that is opened at run time. It stays loaded until the process ends.
class VendorLibrary {
 public:
  /// Returns the copy whose functions are visible to the whole program, because the copy is linked
  /// into the program or was loaded globally. Returns std::nullopt if `function` is not visible.
  static std::optional<VendorLibrary> of_program(const char* function);
  /// Opens the first of `names` that exists, but prefers a library that is already loaded. If an
  /// existing file cannot be loaded, later names are not tried.
  /// @param problem, remedy  parts of the message, such as "NCCL" and "install it".
  /// Errors: NOT_SUPPORTED. The message contains the loader's error for each name.
  static VendorLibrary open(std::span<const char* const> names, const std::string& problem,
                            const std::string& remedy);

  /// @param remedy  for example "(it is older than 2.19); install a newer one".
  /// Errors: NOT_SUPPORTED if the library does not provide the function.
  template <class Function>
  void resolve(Function& function, const char* name, const char* remedy) const {
    function = reinterpret_cast<Function>(dlsym(handle_, name));
    MUONRT_REQUIRE(function, Status::kNotSupported, place_, " has no function ", name, " ", remedy);
  }

  const std::string& place() const { return place_; }

 private:
  VendorLibrary(void* handle, std::string place) : handle_(handle), place_(std::move(place)) {}

  void* handle_;
  std::string place_;  // the name under which the library was found
};

}  // namespace muonrt::cuda
