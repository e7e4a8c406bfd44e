#include <algorithm>
#include <set>

#include "base/hash.hpp"
#include "optimizer/agreement.hpp"
#include "state/checkpoint.hpp"
#include "state/conversions.hpp"
#include "state/moments.hpp"
#include "state/param_hash.hpp"
#include "state/sources.hpp"

namespace muonrt {

namespace {

constexpr size_t kMostShown = 20;  // differences in an error

/// Of what a manifest says and the optimizer has.
class Comparison {
 public:
  Comparison(const Manifest& saved, const Manifest& mine, const LoadSettings& settings)
      : saved_(saved), mine_(mine), settings_(settings) {
    for (const ManifestParam& p : saved.params) by_name_[p.name] = &p;
    std::set<std::string> known;
    for (const ManifestParam& p : mine.params) {
      known.insert(p.name);
      const auto found = by_name_.find(p.name);
      if (found == by_name_.end()) {
        missing(cat("param '", p.name, "' is not in it"), "it starts anew");
      } else {
        compare(*found->second, p);
      }
    }
    for (const ManifestParam& p : saved.params)
      if (!known.contains(p.name))
        missing(cat("param '", p.name, "' is no parameter here"), "it is left");
  }

  /// Errors: INVALID_ARGUMENT with the list of what differs.
  void require_equal(const std::string& what) const {
    if (problems_.empty()) return;
    std::string text;
    for (size_t i = 0; i < std::min(kMostShown, problems_.size()); ++i)
      text += (i ? "; " : "") + problems_[i];
    if (problems_.size() > kMostShown)
      text += cat("; and ", problems_.size() - kMostShown, " more");
    throw Error(kBad, cat(what, ": it is another model's state: ", text));
  }
  const std::vector<std::string>& notes() const { return notes_; }
  /// Null where there is none.
  const ManifestParam* saved(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }

 private:
  void missing(std::string problem, const std::string& partial) {
    if (settings_.partial) {
      notes_.push_back(cat(problem, ": ", partial));
    } else {
      problems_.push_back(std::move(problem));
    }
  }
  void compare(const ManifestParam& saved, const ManifestParam& mine) {
    const auto differ = [&](const char* what, const auto& there, const auto& here) {
      if (there != here)
        problems_.push_back(
            cat("param '", mine.name, "': its ", what, " is ", here, ", there ", there));
    };
    differ("shape", saved.shape, mine.shape);
    differ("dtype", saved.dtype, mine.dtype);
    differ("role", saved.role, mine.role);
    for (const auto& [kind, dtype] : mine.state) {
      const auto found = saved.state.find(kind);
      const std::string other = word_of(other_form(kind_of(kind)));
      if (found == saved.state.end() && saved.state.contains(other)) {
        notes_.push_back(cat("param '", mine.name, "': its ", other, " becomes ", kind));
      } else if (found == saved.state.end()) {
        missing(cat("param '", mine.name, "': its ", kind, " is not in it"), "it starts anew");
      } else {
        differ(cat("dtype of ", kind).c_str(), found->second, dtype);
      }
    }
    for (const auto& [kind, dtype] : saved.state)
      if (!mine.state.contains(kind) && kind != word_of(StateTensor::kParam) &&
          !mine.state.contains(word_of(other_form(kind_of(kind)))))
        missing(cat("param '", mine.name, "': it keeps no ", kind), "it is left");
    if (!saved.lines.empty() && !mine.lines.empty() && saved.lines != mine.lines)
      problems_.push_back(cat("param '", mine.name, "': NorMuon's lines are others (axis, parts)"));
    if (saved.momentum != mine.momentum)
      notes_.push_back(cat("param '", mine.name, "': its momentum was ", saved.momentum,
                           " and becomes ", mine.momentum));
    compare_groups(saved, mine);
  }
  void compare_groups(const ManifestParam& saved, const ManifestParam& mine) {
    if (!seen_.insert({saved.group, mine.group}).second) return;
    const auto& there = saved_.groups[static_cast<size_t>(saved.group)];
    for (const auto& [name, here] : mine_.groups[static_cast<size_t>(mine.group)]) {
      const auto found = there.find(name);
      if (found != there.end() && found->second != here)
        notes_.push_back(cat("group of param '", mine.name, "': ", name, " is ", here, ", and was ",
                             found->second, " when it was saved"));
    }
  }

  const Manifest &saved_, &mine_;
  const LoadSettings& settings_;
  std::map<std::string, const ManifestParam*> by_name_;
  std::set<std::pair<int64_t, int64_t>> seen_;
  std::vector<std::string> problems_, notes_;
};

Manifest read_manifest(Comm& comm, const std::string& path) {
  Manifest out;
  Hash hash;
  together(comm, [&] {
    const std::string text = text_of_file(path);
    hash.bytes(text);
    out = parse_manifest(text, path);
  });
  Fingerprint same;
  same.add("load: hash of the manifest", cat(hash.digest()));
  same.compare(comm);
  return out;
}

/// What momentum is multiplied by to become that of the other convention: heavy ball sums what an
/// average takes the share 1 - constant of.
double conversion(const ManifestParam& saved, const ManifestParam& mine) {
  if (saved.momentum == mine.momentum) return 1.0;
  return saved.momentum == "ema" ? 1.0 / (1.0 - saved.constant) : 1.0 - saved.constant;
}

/// One rank's part of a load.
class Loader {
 public:
  Loader(Optimizer& optimizer, const std::string& folder, const Manifest& saved,
         const Manifest& mine, const Comparison& comparison)
      : optimizer_(optimizer),
        saved_(saved),
        mine_(mine),
        comparison_(comparison),
        copy_(optimizer.device(), optimizer.settings().timeout_ms),
        sources_(folder, saved, optimizer.rank(), optimizer.comm().size()),
        pieces_(local_pieces(optimizer, mine.with_params)) {}

  void verify() {
    for (const LocalPiece& piece : pieces_) {
      const std::string what = name_of(piece);
      read(piece, kind_read(piece),
           [&](int64_t, int64_t element, std::span<const unsigned char> bytes) {
             const StateTensor& t = piece.tensor;
             // A bad one would end in weights unseen.
             const auto bad = bad_moment(t.kind, t.dtype, saved_.step, bytes);
             MUONRT_REQUIRE(!bad, Status::kCorrupt, what, ": element ", element + bad->index, " ",
                            bad->problem, "; load another checkpoint");
           });
    }
  }

  void write() {
    sources_.forget_checks();
    std::vector<int64_t> anew;  // whose weights are taken from the parameters
    for (const LocalPiece& piece : pieces_) {
      const int32_t kind = kind_read(piece);
      if (kind == piece.tensor.kind) {
        write_saved(piece);
      } else if (kind != kNone) {
        write_other_form(piece, kind);
      } else if (is_moment(piece.tensor.kind)) {
        const std::vector<unsigned char> zero(
            static_cast<size_t>(piece.extent.numel() * bytes_of(piece.tensor)));
        copy_.write(piece.data, zero.data(), std::ssize(zero));
      } else {
        anew.push_back(piece.tensor.param);
      }
    }
    if (!anew.empty()) optimizer_.take_params(anew);
    resume();
  }

 private:
  const ManifestParam& mine_of(const LocalPiece& piece) const {
    return mine_.params[static_cast<size_t>(piece.tensor.param)];
  }
  const ManifestParam& saved_of(const LocalPiece& piece) const {
    return *comparison_.saved(mine_of(piece).name);
  }
  /// The kind of state that a piece is read from; kNone: it is absent.
  static constexpr int32_t kNone = -2;
  int32_t kind_read(const LocalPiece& piece) const {
    const ManifestParam* const saved = comparison_.saved(mine_of(piece).name);
    for (const int32_t kind : {piece.tensor.kind, other_form(piece.tensor.kind)})
      if (saved && saved->state.contains(word_of(kind))) return kind;
    return kNone;
  }
  std::string name_of(const LocalPiece& piece) const {
    return cat("load: param '", mine_of(piece).name, "': ", word_of(piece.tensor.kind));
  }
  void read(const LocalPiece& piece, int32_t kind, const StateSources::Take& take) {
    if (kind != kNone) sources_.read(mine_of(piece).name, kind, piece.extent, name_of(piece), take);
  }

  void write_saved(const LocalPiece& piece) {
    const int64_t size = bytes_of(piece.tensor);
    char* const to = static_cast<char*>(piece.data);
    const bool converts = piece.tensor.kind == static_cast<int32_t>(StateKind::kMomentum);
    const double factor = converts ? conversion(saved_of(piece), mine_of(piece)) : 1.0;
    read(piece, piece.tensor.kind,
         [&](int64_t first, int64_t, std::span<const unsigned char> bytes) {
           if (factor == 1.0)
             return copy_.write(to + first * size, bytes.data(), std::ssize(bytes));
           const auto values = scaled(bytes, piece.tensor.dtype, factor);
           copy_.write(to + first * size, values.data(), std::ssize(values));
         });
  }

  /// The f32 weights stay what they are. A parameter beside a remainder is theirs, too: it rounds
  /// ties otherwise than one beside master weights.
  void write_other_form(const LocalPiece& piece, int32_t kind) {
    char* const to = static_cast<char*>(piece.data);
    char* const param = static_cast<char*>(
        optimizer_.settings().params[static_cast<size_t>(piece.tensor.param)].data);
    read(piece, kind, [&](int64_t first, int64_t, std::span<const unsigned char> bytes) {
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
  void resume() {
    RandomKeys keys = {saved_.seed, {}};
    std::vector<int64_t> updates;
    for (const ManifestParam& p : mine_.params) {
      const ManifestParam* const saved = comparison_.saved(p.name);
      updates.push_back(saved ? saved->updates : 0);
      keys.keys.push_back(saved ? saved->key : p.key);
    }
    optimizer_.resume(saved_.step, updates, keys);
  }

  Optimizer& optimizer_;
  const Manifest &saved_, &mine_;
  const Comparison& comparison_;
  DeviceCopy copy_;
  StateSources sources_;
  std::vector<LocalPiece> pieces_;
};

/// State goes with the parameters that it was made with.
void check_params(const std::vector<uint64_t>& hashes, const Manifest& mine,
                  const Comparison& comparison, const std::string& path) {
  for (size_t i = 0; i < hashes.size(); ++i) {
    const ManifestParam* const saved = comparison.saved(mine.params[i].name);
    MUONRT_REQUIRE(!saved || saved->hash == hashes[i], kBad, path, ": param '", mine.params[i].name,
                   "' has other values than when its state was saved; load the parameters that "
                   "were saved with it first");
  }
}

}  // namespace

std::vector<std::string> load_state(Optimizer& optimizer, const std::string& folder,
                                    const LoadSettings& settings) {
  optimizer.require_usable();
  Comm& comm = optimizer.comm();
  Fingerprint arguments;
  arguments.add("load: manifest", settings.manifest);
  arguments.add("load: with_params", cat(settings.with_params));
  arguments.add("load: partial", cat(settings.partial));
  arguments.compare(comm);
  const std::string path = manifest_path(folder, settings.manifest);
  const Manifest saved = read_manifest(comm, path);
  const bool with_params = saved.with_params && settings.with_params;
  const Manifest mine = manifest_of(optimizer, with_params);
  const Comparison comparison(saved, mine, settings);
  std::optional<Loader> loader;
  together(comm, [&] {
    comparison.require_equal(path);
    loader.emplace(optimizer, folder, saved, mine, comparison);
    loader->verify();
  });
  if (!with_params) {
    const std::vector<uint64_t> hashes = param_hashes(optimizer);
    together(comm, [&] { check_params(hashes, mine, comparison, path); });
  }
  try {
    together(comm, [&] { loader->write(); });
  } catch (const Error& e) {
    const Error end(e.status(), cat("load: state is partly written: ", e.message()), e.rank(),
                    e.is_secondhand());
    optimizer.end(end);
    throw end;
  }
  return comparison.notes();
}

}  // namespace muonrt
