#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "state/manifest.hpp"
#include "state/sources.hpp"

namespace muonrt::tool {

/// A checkpoint that the command line selects.
struct Saved {
  std::string folder;
  std::string manifest = {};  // file name of an older manifest; "": the newest

  std::string path() const { return manifest_path(folder, manifest); }
  /// Errors: IO, CORRUPT, NOT_SUPPORTED (another format).
  Manifest read() const { return read_manifest(path()); }
};

/// "momentum of param 'w'".
std::string tensor_text(const std::string& param, int32_t kind);

/// The saved dtype, such as "F32", of a kind of state that the parameter has.
inline const std::string& dtype_of(const ManifestParam& param, int32_t kind) {
  return param.state.at(kind_name(kind));
}

/// Reads and checks all elements of a tensor. Errors: as StateSources::read.
std::vector<unsigned char> whole_tensor(StateSources& sources, const ManifestParam& param,
                                        int32_t kind);

}  // namespace muonrt::tool
