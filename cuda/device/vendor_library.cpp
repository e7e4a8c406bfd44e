#include "cuda/device/vendor_library.hpp"

#include <unistd.h>

namespace muonrt::cuda {

namespace {

bool begins_with(const std::string& text, const std::string& front) {
  return text.compare(0, front.size(), front) == 0;
}

/// Returns true if no file with this name exists, and false if a file exists but cannot be loaded.
/// Only the prefix of the loader's text is used, because the rest depends on the locale. If the
/// search finds no file, the text begins with the bare name. Otherwise it begins with the path of
/// the file or of a missing dependency.
bool is_absent(const std::string& name, const std::string& reason) {
  if (name.find('/') != std::string::npos) return access(name.c_str(), F_OK) != 0;
  return begins_with(reason, name + ":");
}

}  // namespace

std::optional<VendorLibrary> VendorLibrary::of_program(const char* function) {
  void* const found = dlsym(RTLD_DEFAULT, function);
  if (!found) return std::nullopt;
  Dl_info info = {};
  const bool known = dladdr(found, &info) != 0 && info.dli_fname && *info.dli_fname;
  return VendorLibrary(RTLD_DEFAULT, known ? info.dli_fname : "the program");
}

VendorLibrary VendorLibrary::open(std::span<const char* const> names, const std::string& problem,
                                  const std::string& remedy) {
  for (const char* const name : names) {
    if (void* const handle = dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) return {handle, name};
  }
  std::string why;
  for (const std::string name : names) {
    if (void* const handle = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL)) return {handle, name};
    const char* const text = dlerror();
    const std::string reason = text ? text : "unknown reason";
    const bool named = reason.find(name) != std::string::npos;
    why += cat(why.empty() ? "" : "; ", named ? "" : cat(name, ": "), reason);
    if (!is_absent(name, reason)) break;
  }
  throw Error(Status::kNotSupported, cat(problem, " cannot be loaded (", why, "); ", remedy));
}

}  // namespace muonrt::cuda
