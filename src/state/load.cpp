#include <algorithm>
#include <functional>
#include <numeric>

#include "base/crc32c.hpp"
#include "base/deadline.hpp"
#include "base/log.hpp"
#include "optimizer/agreement.hpp"
#include "state/checkpoint.hpp"
#include "state/comparison.hpp"
#include "state/conversions.hpp"
#include "state/element_hash.hpp"
#include "state/moments.hpp"
#include "state/param_hash.hpp"
#include "state/sources.hpp"

namespace muonrt {

namespace {

std::shared_ptr<const SharedManifest> read_same(Comm& comm, const std::string& path) {
  std::shared_ptr<const SharedManifest> out;
  AgreementTable same;
  run_collectively(comm, [&] {
    out = share_manifest(path);
    const auto bytes = out->file.bytes();
    same.add("load: checksum of the manifest",
             cat(crc32c(bytes.data(), bytes.size()), " of ", bytes.size(), " bytes"));
  });
  same.require_equal(comm);
  return out;
}

/// Returns the factor that converts saved momentum to the optimizer's kind of momentum. Heavy ball
/// adds the whole gradient in each step, while EMA adds 1 - constant times the gradient.
double conversion(const ManifestParam& saved, const ManifestParam& mine) {
  if (saved.momentum == mine.momentum) return 1.0;
  return saved.momentum == "ema" ? 1.0 / (1.0 - saved.momentum_constant)
                                 : 1.0 - saved.momentum_constant;
}

/// Returns the kind of saved state from which `kind` is read: `kind` itself if the checkpoint
/// contains it, and otherwise other_form(kind). Returns kNone if the checkpoint contains neither.
constexpr int32_t kNone = -2;
int32_t kind_in(const ManifestParam* saved, int32_t kind) {
  for (const int32_t from : {kind, other_form(kind)})
    if (saved && saved->state.contains(kind_name(from))) return from;
  return kNone;
}
/// Returns where the values of a parameter are stored: kParam, the kind of its master weights, or
/// kNone.
int32_t param_source(const ManifestParam* saved) {
  const int32_t from = kind_in(saved, StateTensor::kParam);
  return from == StateTensor::kParam || (from != kNone && saved->state.at(kind_name(from)) == "F32")
             ? from
             : kNone;
}

/// Performs one rank's part of a load.
class Loader {
 public:
  Loader(Optimizer& optimizer, const std::string& folder, const Manifest& saved,
         const Manifest& mine, const Comparison& comparison, bool with_params)
      : optimizer_(optimizer),
        saved_(saved),
        mine_(mine),
        comparison_(comparison),
        copy_(optimizer.device(), optimizer.settings().timeout_ms),
        sources_(folder, saved, optimizer.rank(), optimizer.comm().size()),
        shards_(local_state_shards(optimizer, with_params)) {}

  /// Checks the saved values that this rank needs.
  /// @return For each parameter, this rank's term in the hash of the parameter's saved master
  ///     weights, rounded to the parameter's dtype.
  std::vector<uint64_t> verify() {
    std::vector<uint64_t> hashes(mine_.params.size());
    for (const StateShard& shard : shards_) {
      const std::string what = what_of(shard);
      const int32_t kind = kind_read(shard);
      const bool rounds = shard.tensor.kind == StateTensor::kParam && kind != shard.tensor.kind;
      read(shard, kind, [&](int64_t first, int64_t element, std::span<const unsigned char> bytes) {
        const StateTensor& t = shard.tensor;
        if (rounds) {
          // The range of elements that this rank adds to the hash.
          const int64_t skipped = std::clamp<int64_t>(shard.write_begin - first, 0,
                                                      std::ssize(bytes) / 4),
                        end = std::clamp<int64_t>(shard.write_end - first, skipped,
                                                  std::ssize(bytes) / 4);
          hashes[static_cast<size_t>(t.param)] +=
              hash_elements(t.name, element + skipped,
                            rounded(bytes.subspan(static_cast<size_t>(skipped * 4),
                                                  static_cast<size_t>((end - skipped) * 4)),
                                    t.dtype),
                            bytes_of(t));
          return;
        }
        // An invalid moment would change weights without causing an error.
        const auto bad = bad_moment(t.kind, t.dtype, saved_.step, bytes);
        MUONRT_REQUIRE(!bad, Status::kCorrupt, what, ": element ", element + bad->index, " ",
                       bad->problem, "; load another checkpoint");
        const double factor = factor_of(shard);
        if (factor == 1.0) return;
        const auto large = bad_moment(t.kind, t.dtype, saved_.step, scaled(bytes, t.dtype, factor));
        MUONRT_REQUIRE(!large, Status::kInvalidArgument, what, ": element ", element + large->index,
                       " ", large->problem, " as ", mine_of(shard).momentum,
                       "; use the momentum_kind of the save");
      });
    }
    return hashes;
  }

  /// Returns the bytes of the shards of this rank.
  int64_t bytes() const {
    int64_t out = 0;
    for (const StateShard& shard : shards_) out += shard.extent.numel() * bytes_of(shard.tensor);
    return out;
  }

  /// @param sources  For each parameter, where its values are stored. Parameters with kNone do not
  ///     change.
  void write(const std::vector<int32_t>& sources) {
    sources_.forget_checks();
    for (const StateShard& shard : shards_) {
      const bool param = shard.tensor.kind == StateTensor::kParam;
      const int32_t kind =
          param ? sources[static_cast<size_t>(shard.tensor.param)] : kind_read(shard);
      if (kind == shard.tensor.kind) {
        write_saved(shard);
      } else if (kind != kNone && param) {
        write_rounded(shard, kind);
      } else if (kind != kNone) {
        write_other_form(shard, kind);
      } else if (shard.tensor.kind != StateTensor::kParam) {
        initialize(shard);
      }
    }
    resume();
  }

 private:
  const ManifestParam& mine_of(const StateShard& shard) const {
    return mine_.params[static_cast<size_t>(shard.tensor.param)];
  }
  const ManifestParam& saved_of(const StateShard& shard) const {
    return *comparison_.saved(mine_of(shard).name);
  }
  /// Returns the saved kind of state from which a shard is read, or kNone.
  int32_t kind_read(const StateShard& shard) const {
    const ManifestParam* const saved = comparison_.saved(mine_of(shard).name);
    return shard.tensor.kind == StateTensor::kParam ? param_source(saved)
                                                    : kind_in(saved, shard.tensor.kind);
  }
  std::string what_of(const StateShard& shard) const {
    return cat("load: ", name_of(mine_of(shard)), ": ", kind_name(shard.tensor.kind));
  }
  /// Returns the factor by which the saved elements of the shard are multiplied.
  double factor_of(const StateShard& shard) const {
    const bool momentum = shard.tensor.kind == static_cast<int32_t>(StateKind::kMomentum);
    return momentum ? conversion(saved_of(shard), mine_of(shard)) : 1.0;
  }
  char* param_of(const StateShard& shard) const {
    return static_cast<char*>(
        optimizer_.settings().params[static_cast<size_t>(shard.tensor.param)].data);
  }
  void read(const StateShard& shard, int32_t kind, const StateSources::Take& take) {
    if (kind != kNone) sources_.read(mine_of(shard).name, kind, shard.extent, what_of(shard), take);
  }

  void write_saved(const StateShard& shard) {
    const int64_t size = bytes_of(shard.tensor);
    char* const to = static_cast<char*>(shard.data);
    const double factor = factor_of(shard);
    read(shard, shard.tensor.kind,
         [&](int64_t first, int64_t, std::span<const unsigned char> bytes) {
           if (factor == 1.0)
             return copy_.write(to + first * size, bytes.data(), std::ssize(bytes));
           const auto values = scaled(bytes, shard.tensor.dtype, factor);
           copy_.write(to + first * size, values.data(), std::ssize(values));
         });
  }

  /// Sets the parameter to its rounded saved master weights.
  void write_rounded(const StateShard& shard, int32_t kind) {
    char* const to = static_cast<char*>(shard.data);
    read(shard, kind, [&](int64_t first, int64_t, std::span<const unsigned char> bytes) {
      const auto values = rounded(bytes, shard.tensor.dtype);
      copy_.write(to + first * bytes_of(shard.tensor), values.data(), std::ssize(values));
    });
  }
  /// Converts master weights to remainders, or remainders to master weights. The f32 weights that
  /// they represent do not change. After a conversion to remainders, also sets the parameter,
  /// because ties are rounded differently with remainders.
  void write_other_form(const StateShard& shard, int32_t kind) {
    char* const to = static_cast<char*>(shard.data);
    char* const param = param_of(shard);
    read(shard, kind, [&](int64_t first, int64_t, std::span<const unsigned char> bytes) {
      if (kind == static_cast<int32_t>(StateKind::kMaster)) {
        const SplitWeights weights = split_weights(bytes);
        copy_.write(param + first * 2, weights.params.data(), std::ssize(weights.params));
        copy_.write(to + first * 2, weights.remainders.data(), std::ssize(weights.remainders));
      } else {
        std::vector<unsigned char> halves(bytes.size());
        copy_.read(halves.data(), param + first * 2, std::ssize(halves));
        const auto weights = join_weights(halves, bytes);
        copy_.write(to + first * 4, weights.data(), std::ssize(weights));
      }
    });
  }
  /// Sets the shard to zero, or, for master weights, to the values of the parameter.
  void initialize(const StateShard& shard) {
    constexpr int64_t kAtOnce = 1 << 18;
    const int64_t size = bytes_of(shard.tensor);
    const bool master = shard.tensor.kind == static_cast<int32_t>(StateKind::kMaster);
    for (int64_t at = 0; at < shard.extent.numel(); at += kAtOnce) {
      const int64_t count = std::min(kAtOnce, shard.extent.numel() - at);
      std::vector<unsigned char> values(static_cast<size_t>(count * size));
      if (master) {
        std::vector<unsigned char> halves(static_cast<size_t>(count * 2));
        copy_.read(halves.data(), param_of(shard) + at * 2, count * 2);
        values = join_weights(halves, std::vector<unsigned char>(halves.size()));
      }
      copy_.write(static_cast<char*>(shard.data) + at * size, values.data(), count * size);
    }
  }

  void resume() {
    RandomKeys keys = {saved_.seed, {}};
    uint32_t unused = 0;  // a key that is larger than all saved keys
    for (const ManifestParam& p : saved_.params) unused = std::max(unused, p.key + 1);
    std::vector<int64_t> updates;
    for (const ManifestParam& p : mine_.params) {
      const ManifestParam* const saved = comparison_.saved(p.name);
      updates.push_back(saved ? saved->updates : 0);
      keys.keys.push_back(saved ? saved->key : unused++);
    }
    optimizer_.resume(saved_.step, updates, keys);
  }

  Optimizer& optimizer_;
  const Manifest &saved_, &mine_;
  const Comparison& comparison_;
  DeviceCopy copy_;
  StateSources sources_;
  std::vector<StateShard> shards_;
};

int64_t elements_of(const ManifestParam& p) {
  return std::accumulate(p.shape.begin(), p.shape.end(), int64_t{1}, std::multiplies<>());
}

/// Finds where the values of each parameter are stored in the checkpoint.
/// @param hashes  Hashes of the saved master weights after rounding. If such a hash differs from
///     the hash of the saved parameter, the caller had rounded the weights in a different way. The
///     parameter then cannot be restored and must have kept its values.
std::vector<int32_t> param_sources(const Manifest& mine, const Comparison& comparison,
                                   const std::vector<uint64_t>& hashes, bool with_params) {
  std::vector<int32_t> out;
  for (const ManifestParam& p : mine.params) {
    const ManifestParam* const saved = comparison.saved(p.name);
    const int32_t kind = with_params ? param_source(saved) : kNone;
    const bool other =
        kind != kNone && kind != StateTensor::kParam && hashes[out.size()] != saved->hash;
    out.push_back(elements_of(p) == 0 ? StateTensor::kParam : other ? kNone : kind);
  }
  return out;
}

/// Checks that each parameter that is not read has the same values as when the checkpoint was
/// saved.
void check_params(const std::vector<uint64_t>& hashes, const std::vector<int32_t>& sources,
                  const Manifest& mine, const Comparison& comparison, const std::string& path) {
  for (size_t i = 0; i < hashes.size(); ++i) {
    const ManifestParam* const saved = comparison.saved(mine.params[i].name);
    MUONRT_REQUIRE(!saved || sources[i] != kNone || saved->hash == hashes[i], kInvalidArg, path,
                   ": the values of ", name_of(mine.params[i]),
                   " differ from those at the time of the save; first restore the parameters that "
                   "belong to this checkpoint");
  }
}

/// Returns a note that states how many parameters were loaded.
std::string note_of(const std::vector<int32_t>& sources, const Manifest& mine) {
  int64_t loaded = 0, bytes = 0;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i] != StateTensor::kParam) continue;
    bytes += elements_of(mine.params[i]) * (mine.params[i].dtype == name_of(DType::kF32) ? 4 : 2);
    ++loaded;
  }
  const int64_t unchanged = std::count(sources.begin(), sources.end(), kNone);
  return cat("parameters: ", loaded, " loaded (", bytes, " bytes), ",
             std::ssize(sources) - loaded - unchanged, " rounded from master weights, ", unchanged,
             " unchanged because they are not in the checkpoint\n");
}

}  // namespace

std::string load_state(Optimizer& optimizer, const std::string& folder,
                       const LoadSettings& settings) {
  const auto start = Deadline::Clock::now();
  optimizer.require_usable();
  Comm& comm = optimizer.comm();
  AgreementTable arguments;
  std::string path;
  run_collectively(comm, [&] {
    path = manifest_path(folder, settings.manifest);
    arguments.add("load: manifest", settings.manifest);
    arguments.add("load: with_params", cat(settings.with_params));
    arguments.add("load: partial", cat(settings.partial));
  });
  arguments.require_equal(comm);
  const auto shared = read_same(comm, path);
  const Manifest& saved = shared->manifest;
  Manifest mine;
  std::optional<Comparison> comparison;
  std::optional<Loader> loader;
  std::string notes, partly;
  std::vector<uint64_t> hashes;
  std::vector<int32_t> sources;
  run_collectively(comm, [&] {
    mine = manifest_of(optimizer);
    comparison.emplace(saved, mine, settings);
    comparison->require_equal(path);
    partly = "load: state is partly written: ";
    loader.emplace(optimizer, folder, saved, mine, *comparison, settings.with_params);
    hashes = loader->verify();
  });
  hashes = sum_over_ranks(comm, hashes);
  run_collectively(comm, [&] {
    sources = param_sources(mine, *comparison, hashes, settings.with_params);
    notes = (settings.with_params ? note_of(sources, mine) : "") + comparison->notes();
  });
  if (std::find(sources.begin(), sources.end(), kNone) != sources.end()) {
    hashes = param_hashes(optimizer);
    run_collectively(comm, [&] { check_params(hashes, sources, mine, *comparison, path); });
  }
  try {
    run_collectively(comm, [&] { loader->write(sources); });
  } catch (const Error& e) {
    const Error end = e.with_context(partly);
    optimizer.set_fatal_error(end);
    throw end;
  }
  log(LogLevel::kInfo, [&] {
    return cat("rank ", comm.rank(), ": loaded checkpoint ", in_quotes(path), " (step ",
               optimizer.steps(), ", ", loader->bytes(), " bytes of this rank, ",
               fixed(seconds_since(start), 3), " s)");
  });
  return notes;
}

}  // namespace muonrt
