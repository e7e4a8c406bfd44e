#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "state/manifest.hpp"
#include "state/sources.hpp"

namespace muonrt::tool {

/// A checkpoint in a folder, as the command line names it.
struct Saved {
  std::string folder;
  std::string manifest = {};  // its name, of one that was kept; "": the newest

  std::string path() const { return manifest_path(folder, manifest); }
  /// Errors: IO, CORRUPT, NOT_SUPPORTED (another format).
  Manifest read() const { return read_manifest(path()); }
};

/// "momentum of param 'w'".
std::string tensor_text(const std::string& param, int32_t kind);

/// "F32"; of a kind that the parameter has.
inline const std::string& dtype_of(const ManifestParam& param, int32_t kind) {
  return param.state.at(kind_name(kind));
}

/// All elements of a tensor, checked. Errors: as StateSources::read.
std::vector<unsigned char> whole_tensor(StateSources& sources, const ManifestParam& param,
                                        int32_t kind);

}  // namespace muonrt::tool
