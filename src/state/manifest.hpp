#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "optimizer/optimizer.hpp"
#include "state/shard_file.hpp"

namespace muonrt {

/// What a manifest says of a parameter.
struct ManifestParam {
  std::string name;
  std::vector<int64_t> shape;
  std::string dtype;             // "f32"
  std::string role;              // "muon", "adamw"
  std::string momentum;          // how its momentum is formed: "ema", "heavy_ball"
  double momentum_constant = 0;  // and with which constant
  int64_t updates = 0;
  uint32_t key = 0;     // of its random rounding
  std::string neurons;  // NorMuon: a digest of what has a moment; else ""
  int64_t group = 0;
  uint64_t hash = 0;                         // of its elements, see param_hashes
  std::map<std::string, std::string> state;  // dtype, by the word of its kind
};

/// A checkpoint, but for the data.
struct Manifest {
  int64_t save = 0;  // counts those into one folder, however step goes
  int64_t step = 0;
  uint64_t seed = 0;  // of random rounding
  bool with_params = false;
  std::vector<std::map<std::string, std::string>> groups;  // settings by name, as they are listed
  std::vector<ManifestParam> params;
  std::vector<ManifestFile> files;
};

constexpr int64_t kMaxSaves = 9999999999;
constexpr const char* kManifestName = "manifest.json";
constexpr const char* kCheckpointFormat = "muonrt checkpoint 1";

/// @param name  of one that was kept; "": the newest.
std::string manifest_path(const std::string& folder, const std::string& name);

/// What the optimizer's would say, but for hashes and files.
Manifest manifest_of(const Optimizer& optimizer, bool with_params);

std::string to_text(const Manifest& manifest);
/// @param what  names it in errors. Errors: CORRUPT.
Manifest parse_manifest(std::string_view text, const std::string& what);
/// Errors: as parse_manifest; IO.
Manifest read_manifest(const std::string& path);

/// A manifest and its text. Ranks that are threads of one process share it.
struct SharedManifest {
  explicit SharedManifest(const std::string& path) : file(path) {}
  MappedFile file;
  Manifest manifest;
};
/// The file's, as others have it who read the same text meanwhile. Errors: as read_manifest.
std::shared_ptr<const SharedManifest> share_manifest(const std::string& path);

}  // namespace muonrt
