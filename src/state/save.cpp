#include "state/save.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <optional>
#include <random>
#include <system_error>
#include <utility>

#include "optimizer/agreement.hpp"
#include "state/digits.hpp"
#include "state/moments.hpp"
#include "state/param_hash.hpp"
#include "state/publisher.hpp"

namespace muonrt {

namespace {

/// A load would refuse it.
void require_good(int64_t step, const StateTensor& tensor, int64_t first,
                  std::span<const unsigned char> bytes) {
  const auto bad = bad_moment(tensor.kind, tensor.dtype, step, bytes);
  MUONRT_REQUIRE(!bad, Status::kInvalidState, "save: param '", tensor.name, "': its ",
                 kind_name(tensor.kind), ": element ", first + bad->index, " of the local piece ",
                 bad->problem, step == 0 ? "; set the step that it belongs to" : "",
                 "; no load would take it");
}

/// `folder` however the process changes its directory later; empty stays empty.
std::string absolute(const std::string& folder) {
  if (folder.empty() || folder.front() == '/') return folder;
  char here[PATH_MAX];
  MUONRT_REQUIRE(getcwd(here, sizeof here), Status::kIo, "save: folder ", folder,
                 " is relative, and this process has no working directory (",
                 std::generic_category().message(errno), "); give an absolute path");
  return cat(here, "/", folder);
}

}  // namespace

Save::Save(Optimizer& optimizer, const std::string& folder, const SaveSettings& settings,
           Files& files)
    : comm_(optimizer.comm()),
      settings_(settings),
      files_(files),
      step_(optimizer.steps()),
      process_(getpid()) {
  AgreementTable arguments;
  run_collectively(comm_, [&] {
    folder_ = absolute(folder);
    arguments.add("save: step", cat(step_));
    arguments.add("save: with_params", cat(settings.with_params));
    arguments.add("save: keep", cat(settings.keep));
    if (comm_.rank() == 0) manifest_ = manifest_of(optimizer, settings.with_params);
    rank_files_.resize(static_cast<size_t>(comm_.size()));
  });
  arguments.require_equal(comm_);
  draw_id();
  make_shared_folder();
  const std::vector<uint64_t> hashes = param_hashes(optimizer);
  for (size_t i = 0; i < manifest_.params.size(); ++i) manifest_.params[i].hash = hashes[i];
}

Save::~Save() {
  if (process_ == getpid()) remove_own_file();
}

/// In the names of all files of this checkpoint: drawn by rank 0.
void Save::draw_id() {
  int64_t mine = 0;
  run_collectively(comm_, [&] {
    if (comm_.rank() != 0) return;
    std::random_device random;
    mine = static_cast<int64_t>(uint64_t{random()} << 32 | random());
  });
  const RankFile told = {mine, 0};
  comm_.allgather(&told, rank_files_.data(), sizeof told);
  run_collectively(comm_, [&] {
    id_ = digits_of(static_cast<uint64_t>(rank_files_[0].bytes), 16);
    name_ = rank_file(id_, comm_.rank());
    path_ = folder_ + "/" + name_;
  });
}

/// A folder that every rank sees, and no other job saves into.
void Save::make_shared_folder() {
  std::string path;
  std::optional<OutFile> probe;
  run_collectively(comm_, [&] {
    MUONRT_REQUIRE(!folder_.empty(), kInvalidArg,
                   "save: folder is empty; give the name of a folder");
    path = probe_path(folder_, id_);
    if (comm_.rank() != 0) return;
    files_.make_folder(folder_);
    lock_ = files_.lock(folder_ + "/" + kLockName);
    probe.emplace(files_, path);
    probe->finish();
  });
  run_collectively(comm_, [&] {
    MUONRT_REQUIRE(files_.exists(path), Status::kIo, folder_,
                   ": this rank does not see what rank 0 has written there (the folder is not "
                   "shared); give one on a file system that all ranks have");
  });
}

void Save::remove_own_file() {
  if (own_file_.bytes > 0) files_.remove(path_);
  own_file_ = {};
}

void Save::write(const std::vector<StateShard>& shards, DeviceCopy& copy) {
  own_file_ = write_shard_file(
      files_, folder_, name_, shards, copy,
      [&](const StateShard& shard, int64_t first, std::span<const unsigned char> bytes) {
        require_good(step_, shard.tensor, first, bytes);
      });
}

void Save::publish(const std::optional<Error>& error) {
  throw_common_error(comm_, error);
  // From here on a rank that does not hear of rank 0 leaves its file: a manifest may name it.
  const ManifestFile mine = std::exchange(own_file_, {});
  const RankFile told = {mine.bytes, mine.header_crc32c};
  comm_.allgather(&told, rank_files_.data(), sizeof told);
  std::optional<Error> problem;
  bool published = false;
  if (comm_.rank() == 0) {
    problem = capture_error([&] {
      for (int r = 0; r < comm_.size(); ++r) {
        const RankFile& t = rank_files_[static_cast<size_t>(r)];
        if (t.bytes > 0)
          manifest_.files.push_back(
              {rank_file(id_, r), t.bytes, static_cast<uint32_t>(t.header_crc32c)});
      }
      Publisher(files_, folder_, id_).publish(manifest_, settings_.keep, published);
    });
  }
  const RankFile outcome = {published, 0};
  comm_.allgather(&outcome, rank_files_.data(), sizeof outcome);
  if (!rank_files_[0].bytes) own_file_ = mine;  // and goes with this object
  throw_common_error(comm_, problem);
}

void save_state(Optimizer& optimizer, const std::string& folder, const SaveSettings& settings,
                Files& files) {
  optimizer.require_usable();
  Save save(optimizer, folder, settings, files);
  save.publish(capture_error([&] {
    DeviceCopy copy(optimizer.device(), optimizer.settings().timeout_ms);
    save.write(local_state_shards(optimizer, settings.with_params), copy);
  }));
}

}  // namespace muonrt
