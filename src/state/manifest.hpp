#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "optimizer/optimizer.hpp"
#include "state/shard_file.hpp"

namespace muonrt {

/// A parameter in a manifest.
struct ManifestParam {
  std::string name;
  std::vector<int64_t> shape;
  std::string dtype;             // for example "f32"
  std::string role;              // "muon" or "adamw"
  std::string momentum;          // kind of momentum: "ema" or "heavy_ball"
  double momentum_constant = 0;  // the constant c in the formula
  int64_t updates = 0;
  uint32_t key = 0;     // determines the random bits of stochastic rounding
  std::string neurons;  // hash of the neurons that have NorMuon moments; "" if none have
  int64_t group = 0;
  uint64_t hash = 0;                         // hash of its elements; see param_hashes()
  std::map<std::string, std::string> state;  // maps the name of a kind of state to its dtype
};

/// The description of a checkpoint, without its data.
struct Manifest {
  int64_t save = 0;  // counts the saves into this folder; independent of `step`
  int64_t step = 0;
  uint64_t seed = 0;  // seed of stochastic rounding
  bool with_params = false;
  std::vector<std::map<std::string, std::string>> groups;  // settings of each group, keyed by name
  std::vector<ManifestParam> params;
  std::vector<ManifestFile> files;
};

constexpr int64_t kMaxSaves = 9999999999;
constexpr const char* kManifestName = "manifest.json";
constexpr const char* kCheckpointFormat = "muonrt checkpoint 1";
constexpr int32_t kCheckpointVersion = 1;

/// Returns the path of a manifest.
/// @param name  Name of an older manifest that was kept; an empty name means the newest one.
std::string manifest_path(const std::string& folder, const std::string& name);

/// Returns the manifest of the optimizer, without parameters, hashes and files.
Manifest manifest_of(const Optimizer& optimizer);

std::string to_text(const Manifest& manifest);
/// @param what  Name of the manifest for error messages. Errors: CORRUPT.
Manifest parse_manifest(std::string_view text, const std::string& what);
/// Reads a manifest from a file. Errors: IO; any error of parse_manifest().
Manifest read_manifest(const std::string& path);

/// A manifest and its text. The ranks in one process share this object.
struct SharedManifest {
  explicit SharedManifest(const std::string& path) : file(path) {}
  MappedFile file;
  Manifest manifest;
};
/// Reads a manifest. If another rank of this process still uses a manifest with the same text,
/// returns that object. Errors: the same as read_manifest().
std::shared_ptr<const SharedManifest> share_manifest(const std::string& path);

}  // namespace muonrt
