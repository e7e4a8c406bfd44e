#include "state/publisher.hpp"

#include <set>

#include "base/hash.hpp"
#include "optimizer/agreement.hpp"
#include "state/digits.hpp"

namespace muonrt {

namespace {

constexpr const char* kOlder = "manifest-";  // of checkpoints that are kept behind the newest

std::string text_of(const std::string& path) {
  const MappedFile file(path);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace

void Publisher::publish(const Manifest& manifest, int64_t keep) {
  for (const FileRecord& file : manifest.files) {
    const int64_t bytes = files_.size(folder_ + "/" + file.name);
    MUONRT_REQUIRE(bytes == file.bytes, Status::kIo, folder_, "/", file.name, ": it has ", bytes,
                   " bytes (its rank has written ", file.bytes,
                   "); is the folder shared by all ranks?");
  }
  // Files are there before the manifest that names them.
  files_.sync_folder(folder_);
  if (keep > 1) keep_newest();
  write(to_text(manifest), kManifestName);
  published_ = true;
  files_.sync_folder(folder_);
  const auto parent = folder_.find_last_of('/', folder_.find_last_not_of('/'));
  files_.sync_folder(parent == folder_.npos ? "." : folder_.substr(0, parent + 1));
  clean(manifest, keep);
}

void Publisher::write(const std::string& text, const std::string& name) {
  OutFile file(files_, cat(folder_, "/", kFilePrefix, id_, "-manifest.tmp"));
  file.write(text.data(), std::ssize(text), 0);
  file.finish();
  file.publish(folder_ + "/" + name);
}

/// The newest so far gets a name that stays.
void Publisher::keep_newest() {
  const std::string path = folder_ + "/" + kManifestName;
  if (!files_.exists(path)) return;
  const std::string text = text_of(path);
  const Manifest old = parse_manifest(text, path);
  Hash hash;
  hash.bytes(text);
  write(text, cat(kOlder, digits_of(static_cast<uint64_t>(old.step), 16, 10), "-",
                  digits_of(hash.digest(), 16), ".json"));
}

/// Files that no checkpoint of the last `keep` names, and what failed saves have left. What goes
/// wrong here is no error: the checkpoint is there.
void Publisher::clean(const Manifest& newest, int64_t keep) {
  static_cast<void>(error_of([&] {
    std::set<std::string> named, older;
    const std::vector<std::string> names = files_.list(folder_);
    for (const FileRecord& file : newest.files) named.insert(file.name);
    for (const std::string& name : names)
      if (name.starts_with(kOlder)) older.insert(name);
    std::vector<std::string> gone;
    int64_t left = keep - 1;
    for (auto name = older.rbegin(); name != older.rend(); ++name) {
      const std::string path = folder_ + "/" + *name;
      if (left-- <= 0) {
        gone.push_back(*name);
        continue;
      }
      for (const FileRecord& file : parse_manifest(text_of(path), path).files)
        named.insert(file.name);
    }
    for (const std::string& name : names)
      if (name.starts_with(kFilePrefix) && !named.contains(name)) gone.push_back(name);
    for (const std::string& name : gone) files_.remove(folder_ + "/" + name);
  }));
}

}  // namespace muonrt
