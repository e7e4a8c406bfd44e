#pragma once

#include <dlfcn.h>

#include <optional>
#include <span>
#include <string>

#include "base/error.hpp"

namespace muonrt::cuda {

/// A library of the vendor's that is looked for at run time; it stays for the life of the process.
class VendorLibrary {
 public:
  /// The copy whose functions all parts of the program see: linked into it, or loaded for all.
  /// Nothing where they do not see `function`.
  static std::optional<VendorLibrary> of_program(const char* function);
  /// The first of `names` that there is; one that is in the process already under any of them comes
  /// before. A file that is there and cannot be loaded is not passed over for a later name.
  /// @param problem, remedy  of the message: "NCCL", "install it".
  /// Errors: NOT_SUPPORTED, with the loader's reason for each name.
  static VendorLibrary open(std::span<const char* const> names, const std::string& problem,
                            const std::string& remedy);

  /// @param remedy  "(it is older than 2.19); install a newer one".
  /// Errors: NOT_SUPPORTED if it has no such function.
  template <class Function>
  void resolve(Function& function, const char* name, const char* remedy) const {
    function = reinterpret_cast<Function>(dlsym(handle_, name));
    MUONRT_REQUIRE(function, Status::kNotSupported, place_, " has no function ", name, " ", remedy);
  }

 private:
  VendorLibrary(void* handle, std::string place) : handle_(handle), place_(std::move(place)) {}

  void* handle_;
  std::string place_;  // what it was found as
};

}  // namespace muonrt::cuda
