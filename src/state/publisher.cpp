#include "state/publisher.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string_view>

#include "optimizer/agreement.hpp"
#include "state/digits.hpp"

namespace muonrt {

namespace {

constexpr const char* kOlder = "manifest-";  // prefix of the names of older manifests
constexpr const char* kJson = ".json";
constexpr size_t kSaveDigits = 10, kStepDigits = 16;

bool is_number(std::string_view text, std::string_view digits) {
  return text.find_first_not_of(digits) == text.npos;
}

/// Returns a name of the form manifest-SAVE-STEP.json. Sorting these names gives the order of the
/// saves.
std::string older_name(const Manifest& manifest) {
  return cat(kOlder, digits_of(static_cast<uint64_t>(manifest.save), kSaveDigits, 10), "-",
             digits_of(static_cast<uint64_t>(manifest.step), kStepDigits, 10), kJson);
}

constexpr std::string_view kPrefix = "muonrt-";
constexpr size_t kIdDigits = 16, kRankDigits = 5;

/// Returns true if `name` is a file that a save has created. A save never removes any other files.
bool is_of_a_save(std::string_view name) {
  if (!name.starts_with(kPrefix) || name.size() < kPrefix.size() + kIdDigits) return false;
  if (!is_number(name.substr(kPrefix.size(), kIdDigits), "0123456789abcdef")) return false;
  std::string_view rest = name.substr(kPrefix.size() + kIdDigits);
  if (rest == ".probe" || rest == "-manifest.tmp") return true;
  if (rest.ends_with(".tmp")) rest.remove_suffix(4);
  return rest.size() == 1 + kRankDigits + 12 && rest[0] == '-' && rest.ends_with(".safetensors") &&
         is_number(rest.substr(1, kRankDigits), "0123456789");
}

}  // namespace

bool is_older_manifest(std::string_view name) {
  const size_t save = std::string_view(kOlder).size(), step = save + kSaveDigits + 1;
  return name.starts_with(kOlder) && name.size() == step + kStepDigits + 5 &&
         name.ends_with(kJson) && name[step - 1] == '-' &&
         is_number(name.substr(save, kSaveDigits), "0123456789") &&
         is_number(name.substr(step, kStepDigits), "0123456789");
}

std::string rank_file(const std::string& id, int rank) {
  return cat(kPrefix, id, "-", digits_of(static_cast<uint64_t>(rank), kRankDigits, 10),
             ".safetensors");
}

std::string probe_path(const std::string& folder, const std::string& id) {
  return cat(folder, "/", kPrefix, id, ".probe");
}

void Publisher::publish(Manifest& manifest, int64_t keep, bool& published) {
  for (const ManifestFile& file : manifest.files) {
    const int64_t bytes = files_.size(folder_ + "/" + file.name);
    MUONRT_REQUIRE(bytes == file.bytes, Status::kIo, folder_, "/", file.name, ": it has ", bytes,
                   " bytes, but its rank has written ", file.bytes,
                   "; use a folder on a file system that all ranks mount");
  }
  manifest.save = std::min(keep_newest(keep) + 1, kMaxSaves);
  // The files must be on disk before the manifest that names them is written.
  files_.sync_folder(folder_);
  write(to_text(manifest), kManifestName);
  published = true;
  files_.sync_folder(folder_);
  clean(manifest, keep);
}

void Publisher::write(std::string_view text, const std::string& name) {
  OutFile file(files_, cat(folder_, "/", kPrefix, id_, "-manifest.tmp"));
  file.write(text.data(), std::ssize(text), 0);
  file.finish();
  file.publish(folder_ + "/" + name);
}

/// Returns the newest manifest in the folder, or null if there is none. Also returns null if the
/// manifest is damaged, because no rank could load it. Throws if the manifest has a different
/// format, because such a manifest must not be replaced.
std::unique_ptr<SharedManifest> Publisher::newest() {
  const std::string path = folder_ + "/" + kManifestName;
  if (!files_.exists(path)) return nullptr;
  auto out = std::make_unique<SharedManifest>(path);
  const auto problem =
      capture_error([&] { out->manifest = parse_manifest(out->file.text(), path); });
  if (problem && problem->status() == Status::kCorrupt) return nullptr;
  if (problem) throw *problem;
  return out;
}

void Publisher::require_same_model(const Manifest& manifest) {
  const auto there = newest();
  if (!there) return;
  // The shapes of parameters that have not been found yet.
  std::map<std::string_view, const std::vector<int64_t>*> left;
  for (const ManifestParam& p : there->manifest.params) left[p.name] = &p.shape;
  const auto refuse = [&](const std::string& name, const char* problem) {
    throw Error(kInvalidArg,
                cat("save: ", folder_, " has a checkpoint of another model: param ",
                    in_quotes(name), problem, "; save into another folder, or set overwrite"));
  };
  for (const ManifestParam& p : manifest.params) {
    const auto found = left.find(p.name);
    if (found == left.end()) refuse(p.name, " is not in it");
    if (*found->second != p.shape) refuse(p.name, " has another shape there");
    left.erase(found);
  }
  if (!left.empty()) refuse(std::string(left.begin()->first), " is only there");
}

/// If `keep` > 1, also writes the previous newest manifest under its permanent name. Returns the
/// number of the last save.
int64_t Publisher::keep_newest(int64_t keep) {
  int64_t last = 0;
  for (const std::string& name : files_.list(folder_))
    if (is_older_manifest(name))
      last = std::max<int64_t>(last, std::stoll(name.substr(std::strlen(kOlder), kSaveDigits)));
  const auto old = newest();
  if (!old) return last;
  if (keep > 1) write(old->file.text(), older_name(old->manifest));
  return std::max(last, old->manifest.save);
}

/// Removes the saved files that none of the last `keep` checkpoints names, including the files of
/// failed saves. Ignores errors, because the new checkpoint is already complete.
void Publisher::clean(const Manifest& newest, int64_t keep) {
  static_cast<void>(capture_error([&] {
    std::set<std::string> named, older;
    const std::vector<std::string> names = files_.list(folder_);
    for (const ManifestFile& file : newest.files) named.insert(file.name);
    for (const std::string& name : names)
      if (is_older_manifest(name)) older.insert(name);
    std::vector<std::string> unused;
    int64_t left = keep - 1;
    for (auto name = older.rbegin(); name != older.rend(); ++name) {
      const std::string path = folder_ + "/" + *name;
      if (left-- <= 0) {
        unused.push_back(*name);
        continue;
      }
      Manifest kept;
      const std::optional<Error> damaged = capture_error([&] { kept = read_manifest(path); });
      if (damaged && damaged->status() != Status::kCorrupt) throw *damaged;
      if (damaged) unused.push_back(*name);
      for (const ManifestFile& file : kept.files) named.insert(file.name);
    }
    for (const std::string& name : names)
      if (is_of_a_save(name) && !named.contains(name)) unused.push_back(name);
    for (const std::string& name : unused) files_.remove(folder_ + "/" + name);
  }));
}

}  // namespace muonrt
