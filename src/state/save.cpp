#include "state/save.hpp"

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

#include "optimizer/agreement.hpp"
#include "state/digits.hpp"
#include "state/param_hash.hpp"
#include "state/publisher.hpp"

namespace muonrt {

namespace {

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
  return digits_of(all[0], 16);
}

/// A folder that every rank sees.
void make_shared_folder(Comm& comm, const std::string& folder, const std::string& id,
                        Files& files) {
  const std::string path = cat(folder, "/", kFilePrefix, id, ".probe");
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
  return cat(kFilePrefix, id, "-", digits_of(static_cast<uint64_t>(rank), 5, 10), ".safetensors");
}

/// Of step 0 it would be refused where it is read.
void require_zero(int64_t step, const StateTensor& tensor, std::span<const unsigned char> bytes) {
  if (!is_moment(tensor.kind) || step > 0) return;
  MUONRT_REQUIRE(std::all_of(bytes.begin(), bytes.end(), [](unsigned char b) { return b == 0; }),
                 Status::kInvalidState, "save: param '", tensor.name, "': its ",
                 word_of(tensor.kind),
                 " is not zero, but no step was committed; set the step that it belongs to");
}

}  // namespace

Save::Save(Optimizer& optimizer, std::string folder, const SaveSettings& settings, Files& files)
    : comm_(optimizer.comm()),
      folder_(std::move(folder)),
      settings_(settings),
      files_(files),
      step_(optimizer.steps()) {
  Fingerprint arguments;
  arguments.add("save: step", cat(step_));
  arguments.add("save: with_params", cat(settings.with_params));
  arguments.add("save: keep", cat(settings.keep));
  arguments.compare(comm_);
  id_ = draw_id(comm_);
  name_ = rank_file(id_, comm_.rank());
  make_shared_folder(comm_, folder_, id_, files_);
  manifest_ = manifest_of(optimizer, settings.with_params);
  const std::vector<uint64_t> hashes = param_hashes(optimizer);
  for (size_t i = 0; i < hashes.size(); ++i) manifest_.params[i].hash = hashes[i];
}

Save::~Save() { remove_mine(); }

void Save::remove_mine() {
  if (mine_.bytes > 0) files_.remove(folder_ + "/" + mine_.name);
  mine_ = {};
}

void Save::write(const std::vector<LocalPiece>& pieces, DeviceCopy& copy) {
  mine_ = write_piece_file(files_, folder_, name_, pieces, copy,
                           [&](const LocalPiece& piece, std::span<const unsigned char> bytes) {
                             require_zero(step_, piece.tensor, bytes);
                           });
}

void Save::publish(const std::optional<Error>& error) {
  agree(comm_, error);
  // From here on a rank that does not hear of rank 0 leaves its file: a manifest may name it.
  const FileRecord mine = std::exchange(mine_, {});
  const Told told = {mine.bytes, mine.header_crc32c};
  std::vector<Told> tellers(static_cast<size_t>(comm_.size()));
  comm_.allgather(&told, tellers.data(), sizeof told);
  for (int r = 0; r < comm_.size(); ++r) {
    const Told& t = tellers[static_cast<size_t>(r)];
    if (t.bytes > 0)
      manifest_.files.push_back(
          {rank_file(id_, r), t.bytes, static_cast<uint32_t>(t.header_crc32c)});
  }
  Publisher publisher(files_, folder_, id_);
  std::optional<Error> problem;
  if (comm_.rank() == 0) problem = error_of([&] { publisher.publish(manifest_, settings_.keep); });
  const int64_t published = publisher.published();
  std::vector<int64_t> all(static_cast<size_t>(comm_.size()));
  comm_.allgather(&published, all.data(), sizeof published);
  if (!all[0]) mine_ = mine;  // and goes with this object
  agree(comm_, problem);
}

void save_state(Optimizer& optimizer, const std::string& folder, const SaveSettings& settings,
                Files& files) {
  optimizer.require_usable();
  Save save(optimizer, folder, settings, files);
  save.publish(error_of([&] {
    DeviceCopy copy(optimizer.device(), optimizer.settings().timeout_ms);
    save.write(local_pieces(optimizer, settings.with_params), copy);
  }));
}

}  // namespace muonrt
