#include <algorithm>
#include <random>
#include <set>

#include "base/hash.hpp"
#include "optimizer/agreement.hpp"
#include "state/checkpoint.hpp"
#include "state/manifest.hpp"
#include "state/param_hash.hpp"

namespace muonrt {

namespace {

constexpr const char* kPrefix = "muonrt-";
constexpr const char* kOlder = "manifest-";  // of checkpoints that are kept behind the newest

std::string digits_of(uint64_t value, size_t base, size_t count) {
  std::string out(count, '0');
  for (size_t i = count; i-- > 0; value /= base) out[i] = "0123456789abcdef"[value % base];
  return out;
}

/// In the names of all files of this checkpoint: drawn by rank 0.
std::string draw_id(Comm& comm) {
  uint64_t mine = 0;
  together(comm, [&] {
    if (comm.rank() != 0) return;
    std::random_device random;
    mine = uint64_t{random()} << 32 | random();
  });
  std::vector<uint64_t> all(static_cast<size_t>(comm.size()));
  comm.allgather(&mine, all.data(), sizeof mine);
  return digits_of(all[0], 16, 16);
}

/// A folder that every rank sees.
void make_shared_folder(Comm& comm, const std::string& folder, const std::string& id,
                        Files& files) {
  const std::string path = cat(folder, "/", kPrefix, id, ".probe");
  std::optional<OutFile> probe;
  together(comm, [&] {
    MUONRT_REQUIRE(!folder.empty(), kBad, "save: folder is empty; give the name of a folder");
    if (comm.rank() != 0) return;
    files.make_folder(folder);
    probe.emplace(files, path);
    probe->finish();
  });
  together(comm, [&] {
    MUONRT_REQUIRE(files.exists(path), Status::kIo, folder,
                   ": this rank does not see what rank 0 has written there (the folder is not "
                   "shared); give one on a file system that all ranks have");
  });
}

/// What the ranks tell rank 0.
struct Told {
  int64_t bytes, header_crc32c;
};

std::string rank_file(const std::string& id, int rank) {
  return cat(kPrefix, id, "-", digits_of(static_cast<uint64_t>(rank), 10, 5), ".safetensors");
}

std::string text_of(const std::string& path) {
  const MappedFile file(path);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

/// Rank 0's part: the manifest, which makes it a checkpoint, and what of older ones goes then.
class Publisher {
 public:
  Publisher(Files& files, std::string folder, std::string id)
      : files_(files), folder_(std::move(folder)), id_(std::move(id)) {}

  bool published() const { return published_; }

  void publish(const Manifest& manifest, int64_t keep) {
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

 private:
  void write(const std::string& text, const std::string& name) {
    OutFile file(files_, cat(folder_, "/", kPrefix, id_, "-manifest.tmp"));
    file.write(text.data(), std::ssize(text), 0);
    file.finish();
    file.publish(folder_ + "/" + name);
  }

  /// The newest so far gets a name that stays.
  void keep_newest() {
    const std::string path = folder_ + "/" + kManifestName;
    if (!files_.exists(path)) return;
    const std::string text = text_of(path);
    const Manifest old = parse_manifest(text, path);
    Hash hash;
    hash.bytes(text);
    write(text, cat(kOlder, digits_of(static_cast<uint64_t>(old.step), 10, 16), "-",
                    digits_of(hash.digest(), 16, 16), ".json"));
  }

  /// Files that no checkpoint of the last `keep` names, and what failed saves have left. What goes
  /// wrong here is no error: the checkpoint is there.
  void clean(const Manifest& newest, int64_t keep) {
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
        if (name.starts_with(kPrefix) && !named.contains(name)) gone.push_back(name);
      for (const std::string& name : gone) files_.remove(folder_ + "/" + name);
    }));
  }

  Files& files_;
  std::string folder_, id_;
  bool published_ = false;
};

/// State of step 0 is zero, or nobody could read it.
void require_zero(const Optimizer& optimizer, const LocalPiece& piece,
                  std::span<const unsigned char> bytes) {
  const int32_t kind = piece.tensor.kind;
  const bool moment = kind == static_cast<int32_t>(StateKind::kMomentum) ||
                      kind == static_cast<int32_t>(StateKind::kVariance) ||
                      kind == static_cast<int32_t>(StateKind::kNormuon);
  if (!moment || optimizer.steps() > 0) return;
  MUONRT_REQUIRE(std::all_of(bytes.begin(), bytes.end(), [](unsigned char b) { return b == 0; }),
                 Status::kInvalidState, "save: param '",
                 optimizer.settings().params[static_cast<size_t>(piece.tensor.param)].name,
                 "': its ", word_of(kind),
                 " is not zero, but no step was committed; set the step that it belongs to");
}

}  // namespace

void save_state(Optimizer& optimizer, const std::string& folder, const SaveSettings& settings,
                Files& files) {
  optimizer.require_usable();
  Comm& comm = optimizer.comm();
  Fingerprint arguments;
  arguments.add("save: step", cat(optimizer.steps()));
  arguments.add("save: with_params", cat(settings.with_params));
  arguments.add("save: keep", cat(settings.keep));
  arguments.compare(comm);
  const std::string id = draw_id(comm);
  make_shared_folder(comm, folder, id, files);
  std::optional<DeviceCopy> copy;
  FileRecord mine;
  const auto error = error_of([&] {
    copy.emplace(optimizer.device(), optimizer.settings().timeout_ms);
    mine = write_piece_file(files, folder, rank_file(id, comm.rank()), optimizer.settings(),
                            local_pieces(optimizer, settings.with_params), *copy,
                            [&](const LocalPiece& piece, std::span<const unsigned char> bytes) {
                              require_zero(optimizer, piece, bytes);
                            });
  });
  const auto remove_mine = [&] {
    if (mine.bytes > 0) files.remove(folder + "/" + mine.name);
  };
  Manifest manifest;
  try {
    agree(comm, error);
    manifest = manifest_of(optimizer, settings.with_params);
    const std::vector<uint64_t> hashes = param_hashes(optimizer, *copy);
    for (size_t i = 0; i < hashes.size(); ++i) manifest.params[i].hash = hashes[i];
  } catch (...) {
    remove_mine();
    throw;
  }
  // From here on a rank that does not hear of rank 0 leaves its file: a manifest may name it.
  const Told told = {mine.bytes, mine.header_crc32c};
  std::vector<Told> tellers(static_cast<size_t>(comm.size()));
  comm.allgather(&told, tellers.data(), sizeof told);
  for (int r = 0; r < comm.size(); ++r) {
    const Told& t = tellers[static_cast<size_t>(r)];
    if (t.bytes > 0)
      manifest.files.push_back({rank_file(id, r), t.bytes, static_cast<uint32_t>(t.header_crc32c)});
  }
  Publisher publisher(files, folder, id);
  std::optional<Error> problem;
  if (comm.rank() == 0) problem = error_of([&] { publisher.publish(manifest, settings.keep); });
  const int64_t published = publisher.published();
  std::vector<int64_t> all(static_cast<size_t>(comm.size()));
  comm.allgather(&published, all.data(), sizeof published);
  if (!all[0]) remove_mine();
  agree(comm, problem);
}

}  // namespace muonrt
