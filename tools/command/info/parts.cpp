#include "command/info/parts.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <CLI/Version.hpp>
#include <nlohmann/json.hpp>

#include "muonrt/muonrt.hpp"

#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif
#if MUONRT_TOOL_MPI
#include <mpi.h>
#endif

namespace muonrt::tool {

namespace {

std::string mpi_text() {
#if MUONRT_TOOL_MPI
  std::string text(MPI_MAX_LIBRARY_VERSION_STRING, ' ');
  int length = 0;
  if (MPI_Get_library_version(text.data(), &length) != MPI_SUCCESS) return "unknown";
  return text.substr(0, std::min(static_cast<size_t>(length), text.find_first_of(",\n")));
#else
  return {};
#endif
}

/// Returns the version in a text; for example, "2.7.3" in "... onednn 2.7.3 isa ...".
std::string onednn_version(const std::string& host) {
  const size_t at = host.find("onednn ");
  return at == std::string::npos ? "unknown" : host.substr(at + 7, host.find(' ', at + 7) - at - 7);
}

/// Returns whether the process has loaded this library, possibly as a dependency of another
/// library.
bool is_loaded(const char* name) {
  void* const library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
  if (library) dlclose(library);
  return library != nullptr;
}

}  // namespace

std::string version_text() {
  const auto info = nlohmann::json::parse(build_info());
  std::string out = fmt::format("muonrt {}\n", info.at("version").get<std::string>());
  const auto part = [&](const char* name, const std::string& version, const char* license) {
    out += fmt::format("  {:<14} {:<26} {}\n", name, version, license);
  };
  part("ABI", fmt::format("{}", info.at("abi").get<int>()), "-");
  if (info.at("onednn").get<bool>())
    part("oneDNN", onednn_version(info.at("host").get<std::string>()), "Apache-2.0");
  if (info.at("mpi").get<bool>())
    part("MPI", mpi_text(), "BSD-3-Clause (Open MPI), MPICH license (MPICH)");
  if (info.at("cuda").get<bool>())
    part("CUDA", info.at("cuda_versions").get<std::string>(), "NVIDIA CUDA EULA");
  part("CLI11", CLI11_VERSION, "BSD-3-Clause");
  part("fmt",
       fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100),
       "MIT");
  part("nlohmann-json",
       fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
                   NLOHMANN_JSON_VERSION_PATCH),
       "MIT");
  const std::string gcc = fmt::format("{}", _GLIBCXX_RELEASE);
  const char* const gcc_license = "GPL-3.0 with the GCC Runtime Library Exception";
  if (is_loaded("libgomp.so.1")) part("libgomp", "libgomp.so.1", gcc_license);
  part("libstdc++", gcc, gcc_license);
  part("libgcc", gcc, gcc_license);
#ifdef __GLIBC__
  part("glibc", gnu_get_libc_version(), "LGPL-2.1-or-later");
#endif
  out.pop_back();
  return out;
}

}  // namespace muonrt::tool
