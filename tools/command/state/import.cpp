#include "command/state/import.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "base/hash.hpp"
#include "show/fit.hpp"
#include "state/conversions.hpp"
#include "state/digits.hpp"
#include "state/element_hash.hpp"
#include "state/moments.hpp"
#include "state/publisher.hpp"

namespace muonrt::tool {

namespace {

/// Converts F32 or BF16 data to f32.
std::vector<unsigned char> f32_of(const TensorEntry& entry, std::span<const unsigned char> bytes) {
  if (entry.dtype == "F32") return {bytes.begin(), bytes.end()};
  std::vector<unsigned char> out(bytes.size() * 2);
  for (size_t i = 0; i < bytes.size() / 2; ++i) {
    const float value = value_at(entry.dtype, bytes.data() + i * 2);
    std::memcpy(out.data() + i * sizeof value, &value, sizeof value);
  }
  return out;
}

class Import {
 public:
  explicit Import(const ImportArguments& a) : a_(a), state_(a.state), params_(a.params) {
    manifest_.step = a.step;
    manifest_.with_params = true;
    manifest_.groups.resize(2);  // Muon and AdamW, with unknown settings
  }

  void run() {
    const TensorEntry* const step = state_.table().find("step");
    MUONRT_REQUIRE(!step || count(step, 0) == a_.step, kInvalidArg, "--step is ", a_.step, ", but ",
                   state_.path(), " is of step ", count(step, 0));
    taken_.insert("step");
    for (const TensorEntry& entry : params_.table().entries) add(entry);
    for (const TensorEntry& entry : state_.table().entries)
      MUONRT_REQUIRE(
          taken_.contains(entry.name), kInvalidArg, state_.path(), ": tensor ",
          in_quotes(entry.name), " belongs to no parameter of ", params_.path(),
          "; use the names momentum/PARAMETER, variance/PARAMETER and updates/PARAMETER");
    MUONRT_REQUIRE(!manifest_.params.empty(), kInvalidArg, state_.path(), ": it has no state of ",
                   params_.path());
    write();
    print();
  }

 private:
  const TensorEntry* find(const std::string& param, const char* key) {
    const TensorEntry* const found = state_.table().find(cat(key, "/", param));
    if (found) taken_.insert(found->name);
    return found;
  }
  /// Returns the number of steps in the tensor with this name, or `fallback` if there is no such
  /// tensor.
  int64_t count(const TensorEntry* entry, int64_t fallback) const {
    if (!entry) return fallback;
    int64_t out = -1;
    if (entry->dtype == "I64" && entry->bytes() == sizeof out)
      std::memcpy(&out, state_.bytes(*entry).data(), sizeof out);
    MUONRT_REQUIRE(out >= 0 && out <= a_.step, kInvalidArg, state_.path(), ": tensor ",
                   in_quotes(entry->name), " is ", out,
                   ", but must be an I64 from 0 to --step, which is ", a_.step);
    return out;
  }
  /// Returns the kind of momentum of a Muon parameter.
  std::string momentum_of(const std::string& param) const {
    const auto found = state_.table().metadata.find("momentum/" + param);
    MUONRT_REQUIRE(found != state_.table().metadata.end() &&
                       (found->second == "ema" || found->second == "heavy_ball"),
                   kInvalidArg, state_.path(), ": metadata: momentum/", param,
                   " must be ema or heavy_ball");
    return found->second;
  }

  void add(const TensorEntry& entry) {
    const TensorEntry* const second = find(entry.name, "variance");
    const TensorEntry* const first = find(entry.name, "momentum");
    const TensorEntry* const updates = find(entry.name, "updates");
    if (!first && !second) {
      without_.push_back(entry.name);
      return;
    }
    MUONRT_REQUIRE(first, kInvalidArg, state_.path(), ": tensor ", in_quotes(second->name),
                   " has no momentum");
    require_number(params_, entry);
    ManifestParam p;
    p.name = entry.name;
    p.shape = entry.shape;
    p.dtype = entry.dtype == "F32" ? "f32" : "bf16";
    p.role = second ? "adamw" : "muon";
    p.momentum = second ? "ema" : momentum_of(p.name);
    p.momentum_constant = second ? a_.beta1 : a_.momentum;
    p.updates = count(updates, a_.step);
    p.group = second ? 1 : 0;
    Hash key;
    key.bytes(p.name);
    p.key = static_cast<uint32_t>(key.digest());
    p.hash = hash_elements(p.name, 0, params_.bytes(entry), element_bytes(entry.dtype));
    add_shard(p, StateTensor::kParam, entry.dtype, params_.bytes(entry));
    add_moment(p, static_cast<int32_t>(StateKind::kMomentum), *first);
    if (second) add_moment(p, static_cast<int32_t>(StateKind::kVariance), *second);
    manifest_.params.push_back(std::move(p));
  }
  static void require_number(const TensorModel& model, const TensorEntry& entry) {
    MUONRT_REQUIRE(entry.dtype == "F32" || entry.dtype == "BF16", kInvalidArg, model.path(),
                   ": tensor ", in_quotes(entry.name), " is ", entry.dtype,
                   ", but must be F32 or BF16");
  }
  void add_moment(ManifestParam& p, int32_t kind, const TensorEntry& entry) {
    require_number(state_, entry);
    MUONRT_REQUIRE(entry.shape == p.shape, kInvalidArg, state_.path(), ": tensor ",
                   in_quotes(entry.name), " has shape ", shape_text(entry.shape),
                   ", its parameter ", shape_text(p.shape), "; give whole tensors");
    values_.push_back(f32_of(entry, state_.bytes(entry)));
    const auto bad = bad_moment(kind, "F32", a_.step, values_.back());
    MUONRT_REQUIRE(!bad, kInvalidArg, state_.path(), ": tensor ", in_quotes(entry.name),
                   ": element ", bad->index, " ", bad->problem);
    add_shard(p, kind, "F32", values_.back());
  }
  void add_shard(ManifestParam& p, int32_t kind, const std::string& dtype,
                 std::span<const unsigned char> bytes) {
    const int64_t numel = std::ssize(bytes) / element_bytes(dtype);
    if (numel == 0) return;
    p.state[kind_name(kind)] = dtype;
    const StateTensor tensor = {std::ssize(manifest_.params), p.name, kind, dtype, numel};
    // The writer does not write through this pointer.
    shards_.push_back(
        {tensor, whole_extent(numel), const_cast<unsigned char*>(bytes.data()), 0, numel});
  }

  void write() {
    Files files;
    files.make_folder(a_.to);
    const FileLock lock = files.lock(cat(a_.to, "/", kLockName));
    const std::string there = manifest_path(a_.to, "");
    MUONRT_REQUIRE(!files.exists(there), kInvalidArg, "--to: ", there,
                   " already exists; use a new folder");
    Hash id;
    id.bytes(to_text(manifest_));
    const std::string digits = digits_of(id.digest(), 16);
    DeviceCopy copy;
    manifest_.files = {write_shard_file(files, a_.to, rank_file(digits, 0), shards_, copy,
                                        [](const auto&, int64_t, const auto&) {})};
    bool published = false;
    Publisher(files, a_.to, digits).publish(manifest_, 1, published);
  }

  void print() const {
    const auto muon = std::count_if(manifest_.params.begin(), manifest_.params.end(),
                                    [](const ManifestParam& p) { return p.role == "muon"; });
    std::string out;
    out += fmt::format("{}: step {}, {} parameters of Muon and {} of AdamW\n", a_.to, a_.step, muon,
                       std::ssize(manifest_.params) - muon);
    out += fmt::format(
        "assumed: AdamW with beta1 {} if there is a variance, otherwise Muon with momentum {}\n",
        a_.beta1, a_.momentum);
    for (const std::string& name : without_)
      out += fmt::format("note: param {} has no state, so it is not in the checkpoint\n",
                         in_quotes(name));
    out += fmt::format(
        "master weights and other missing state are initialized: load with partial = 1\n");
    print_fitted(out);
  }

  const ImportArguments& a_;
  const TensorModel state_, params_;
  Manifest manifest_;
  std::vector<StateShard> shards_;
  std::vector<std::vector<unsigned char>> values_;
  std::set<std::string> taken_;
  std::vector<std::string> without_;
};

}  // namespace

void import_checkpoint(const ImportArguments& arguments) { Import(arguments).run(); }

}  // namespace muonrt::tool
