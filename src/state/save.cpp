#include "state/save.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <optional>
#include <random>
#include <system_error>

#include "base/checked.hpp"
#include "base/log.hpp"
#include "optimizer/agreement.hpp"
#include "state/digits.hpp"
#include "state/moments.hpp"
#include "state/param_hash.hpp"
#include "state/publisher.hpp"

namespace muonrt {

namespace {

/// Throws INVALID_STATE if loading would reject one of these elements.
void require_loadable(int64_t step, const StateTensor& tensor, int64_t first,
                      std::span<const unsigned char> bytes) {
  const auto bad = bad_moment(tensor.kind, tensor.dtype, step, bytes);
  MUONRT_REQUIRE(!bad, Status::kInvalidState, "save: param '", tensor.name, "': its ",
                 kind_name(tensor.kind), ": element ", first + bad->index, " of the local shard ",
                 bad->problem, ", so no rank could load the checkpoint",
                 step == 0 ? "; set the step number of this state with muonrt_optimizer_set_step()"
                           : "; correct the state");
}

/// Returns `folder` as an absolute path, which remains valid if the process changes its working
/// directory. Returns an empty string if `folder` is empty.
std::string absolute(const std::string& folder) {
  if (folder.empty() || folder.front() == '/') return folder;
  char here[PATH_MAX];
  MUONRT_REQUIRE(getcwd(here, sizeof here), Status::kIo, "save: folder ", folder,
                 " is relative, but the working directory cannot be read: ",
                 std::generic_category().message(errno), "; pass an absolute path");
  return cat(here, "/", folder);
}

}  // namespace

std::vector<StateShard> shards_to_save(const Optimizer& optimizer, bool with_params,
                                       const std::vector<bool>* in_masters) {
  std::vector<StateShard> out = local_state_shards(optimizer, with_params);
  std::erase_if(out, [&](const StateShard& shard) {
    const int64_t param = shard.tensor.param;
    return shard.tensor.kind == StateTensor::kParam &&
           (in_masters ? (*in_masters)[static_cast<size_t>(param)]
                       : has_masters(optimizer.settings(), param));
  });
  return out;
}

SavedBytes bytes_written(const std::vector<StateShard>& shards) {
  SavedBytes out;
  for (const StateShard& shard : shards) {
    const int64_t bytes = (shard.write_end - shard.write_begin) * bytes_of(shard.tensor);
    out.all = checked_add(out.all, bytes);
    if (shard.tensor.kind == StateTensor::kParam) out.params += bytes;
  }
  return out;
}

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
    arguments.add("save: overwrite", cat(settings.overwrite));
    if (comm_.rank() == 0) manifest_ = manifest_of(optimizer);
    rank_files_.resize(static_cast<size_t>(comm_.size()));
  });
  arguments.require_equal(comm_);
  draw_id();
  make_shared_folder();
  const std::vector<uint64_t> hashes = param_hashes(optimizer),
                              of_masters = param_hashes(optimizer, true);
  run_collectively(comm_, [&] {
    const OptimizerSettings& all = optimizer.settings();
    manifest_.with_params = settings.with_params;
    for (size_t i = 0; i < hashes.size(); ++i) {
      const auto param = static_cast<int64_t>(i);
      in_masters_.push_back(has_masters(all, param) && hashes[i] == of_masters[i]);
      if (comm_.rank() != 0) continue;
      manifest_.params[i].hash = hashes[i];
      if (settings.with_params && !in_masters_[i] && all.params[i].layout.numel() > 0)
        manifest_.params[i].state[kind_name(StateTensor::kParam)] =
            tensor_of_param(all, param).dtype;
    }
  });
}

// Only the destructor deletes this rank's file. The comment of the class describes when it does.
Save::~Save() {
  if (process_ == getpid() && own_file_.bytes > 0 && !may_be_named_) files_.remove(path_);
}

/// Sets the ID that the names of all files of this checkpoint contain. Rank 0 chooses it.
void Save::draw_id() {
  int64_t drawn = 0;
  run_collectively(comm_, [&] {
    if (comm_.rank() != 0) return;
    std::random_device random;
    drawn = static_cast<int64_t>(uint64_t{random()} << 32 | random());
  });
  const RankFile own = {drawn, 0};
  comm_.allgather(&own, rank_files_.data(), sizeof own);
  run_collectively(comm_, [&] {
    id_ = digits_of(static_cast<uint64_t>(rank_files_[0].bytes), 16);
    name_ = rank_file(id_, comm_.rank());
    path_ = folder_ + "/" + name_;
  });
}

/// Creates and locks the folder, and checks that all ranks see the same folder.
void Save::make_shared_folder() {
  std::string path;
  std::optional<OutFile> probe;
  run_collectively(comm_, [&] {
    MUONRT_REQUIRE(!folder_.empty(), kInvalidArg,
                   "save: folder is an empty string; pass the name of a folder");
    path = probe_path(folder_, id_);
    if (comm_.rank() != 0) return;
    files_.make_folder(folder_);
    lock_ = files_.lock(folder_ + "/" + kLockName);
    if (!settings_.overwrite) Publisher(files_, folder_, id_).require_same_model(manifest_);
    probe.emplace(files_, path);
    probe->finish();
  });
  run_collectively(comm_, [&] {
    MUONRT_REQUIRE(files_.exists(path), Status::kIo, folder_,
                   ": this rank cannot see the file that rank 0 wrote there, so the folder is not "
                   "shared; use a folder on a file system that all ranks mount");
  });
}

std::vector<StateShard> Save::shards(const Optimizer& optimizer) const {
  return shards_to_save(optimizer, settings_.with_params, &in_masters_);
}

void Save::write(const std::vector<StateShard>& shards, DeviceCopy& copy) {
  own_file_ = write_shard_file(
      files_, folder_, name_, shards, copy,
      [&](const StateShard& shard, int64_t first, std::span<const unsigned char> bytes) {
        require_loadable(step_, shard.tensor, first, bytes);
      });
}

void Save::publish(const std::optional<Error>& error) {
  throw_common_error(comm_, error);
  may_be_named_ = true;
  const RankFile own = {own_file_.bytes, own_file_.header_crc32c};
  comm_.allgather(&own, rank_files_.data(), sizeof own);
  std::optional<Error> problem;
  bool published = false;
  if (comm_.rank() == 0) {
    problem = capture_error([&] {
      for (int r = 0; r < comm_.size(); ++r) {
        const RankFile& file = rank_files_[static_cast<size_t>(r)];
        if (file.bytes > 0)
          manifest_.files.push_back(
              {rank_file(id_, r), file.bytes, static_cast<uint32_t>(file.header_crc32c)});
      }
      Publisher(files_, folder_, id_).publish(manifest_, settings_.keep, published);
    });
  }
  const RankFile outcome = {published, 0};
  comm_.allgather(&outcome, rank_files_.data(), sizeof outcome);
  may_be_named_ = rank_files_[0].bytes != 0;
  throw_common_error(comm_, problem);
  log(LogLevel::kInfo, [&] {
    return cat("rank ", comm_.rank(), ": saved checkpoint ", in_quotes(folder_), " (step ", step_,
               ", ", own_file_.bytes, " bytes of this rank, ", fixed(seconds_since(start_), 3),
               " s)");
  });
}

SavedBytes save_state(Optimizer& optimizer, const std::string& folder, const SaveSettings& settings,
                      Files& files) {
  optimizer.require_usable();
  Save save(optimizer, folder, settings, files);
  SavedBytes out;
  save.publish(capture_error([&] {
    DeviceCopy copy(optimizer.device(), optimizer.settings().timeout_ms);
    const auto shards = save.shards(optimizer);
    save.write(shards, copy);
    out = bytes_written(shards);
  }));
  return out;
}

}  // namespace muonrt
