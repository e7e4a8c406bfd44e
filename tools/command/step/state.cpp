#include "command/step/state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <set>
#include <span>
#include <stdexcept>

#include "command/step/gather.hpp"
#include "command/step/half.hpp"
#include "command/step/owned.hpp"
#include "command/step/state_format.hpp"
#include "opt_json/strict_json.hpp"
#include "state/checksums.hpp"
#include "state/digits.hpp"
#include "state/element_hash.hpp"

namespace muonrt::tool {

namespace {

/// One piece of state of one parameter.
struct Piece {
  const StepTensor* tensor;
  int32_t kind;
  std::string name;
  std::string dtype = "F32";
  std::vector<int64_t> lines = {};  // NorMuon: of each matrix

  bool normuon() const { return kind == MUONRT_STATE_NORMUON; }
  std::vector<int64_t> shape() const {
    if (!normuon()) return tensor->entry->shape;
    return {std::accumulate(lines.begin(), lines.end(), int64_t{0})};
  }
  int64_t elements() const {
    const auto sizes = shape();
    return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
  }
  int64_t element() const { return element_bytes(dtype); }
};

/// In the order of the file.
std::vector<Piece> pieces_of(const std::vector<StepTensor>& tensors) {
  std::vector<Piece> out;
  for (const StepTensor& t : tensors) {
    if (!t.steps()) continue;
    const std::string& name = t.entry->name;
    const bool half = !t.adamw() && t.config->momentum_dtype == MUONRT_DTYPE_BF16;
    out.push_back({&t, MUONRT_STATE_MOMENTUM, "momentum/" + name, half ? "BF16" : "F32"});
    if (t.adamw()) out.push_back({&t, MUONRT_STATE_VARIANCE, "variance/" + name});
    if (!t.adamw() && t.config->normuon) {
      Piece moments{&t, MUONRT_STATE_NORMUON, "normuon/" + name, "F32", normuon_lines(t)};
      if (moments.elements() > 0) out.push_back(std::move(moments));
    }
    if (!t.half()) continue;
    const int32_t master = t.config->precision.value_or(MUONRT_MASTER_AUTO);
    if (master == MUONRT_MASTER_AUTO || master == MUONRT_MASTER_OWNED) {
      out.push_back({&t, MUONRT_STATE_MASTER, "master/" + name});
    } else if (master == MUONRT_MASTER_REMAINDER) {
      out.push_back({&t, MUONRT_STATE_REMAINDER, "remainder/" + name, "U16"});
    }
  }
  return out;
}

std::string momentum_kind(const StepTensor& t) {
  if (t.adamw()) return "adamw";
  return t.config->momentum_kind == MUONRT_MOMENTUM_HEAVY_BALL ? "heavy_ball" : "ema";
}

void check_metadata(const TensorModel& file, const std::vector<StepTensor>& tensors) {
  const auto& metadata = file.table().metadata;
  const auto format = metadata.find("format");
  if (format == metadata.end() ||
      (format->second != kStepStateFormat && format->second != kStepStateOlder)) {
    throw std::runtime_error(file.path() + ": its metadata do not say format " +
                             shown(kStepStateFormat) + "; give a file that --state-out wrote");
  }
  for (const StepTensor& t : tensors) {
    if (!t.steps()) continue;
    const auto kind = metadata.find("momentum/" + t.entry->name);
    if (kind != metadata.end() && kind->second != momentum_kind(t)) {
      throw std::runtime_error(file.path() + ": the momentum of " + shown(t.entry->name) + " is " +
                               shown(kind->second) + ", but " + t.config->rule + " asks for " +
                               momentum_kind(t));
    }
  }
}

std::string hash_key(const StepTensor& t) { return "hash/" + t.entry->name; }

void note(const TensorModel& file, const std::string& what) {
  fmt::print(stderr, "muonrt: note: {}: {}\n", file.path(), what);
}

/// Every byte, and that the parameters are those that the state was written with.
void check_values(const TensorModel& model, const TensorModel& params,
                  const std::vector<StepTensor>& tensors) {
  bool all = true;
  for (const auto& file : model.files()) {
    const auto& metadata = file->table().metadata;
    const bool sums = metadata.at("format") == kStepStateFormat || metadata.contains("crc32c");
    if (sums) check_sums(*file);
    all = all && sums;
  }
  if (!all) note(model, "it has no checksums (an older file): damage to it is not seen");
  std::string unknown;
  for (const StepTensor& t : tensors) {
    if (!t.steps()) continue;
    const std::string& name = t.entry->name;
    const auto found = model.table().metadata.find(hash_key(t));
    if (found == model.table().metadata.end()) {
      if (unknown.empty()) unknown = name;
      continue;
    }
    const auto bytes = params.bytes(*t.entry);
    const auto hash = hash_elements(name, 0, bytes, element_bytes(t.entry->dtype));
    if (digits_of(hash, 16) == found->second) continue;
    throw std::runtime_error(
        fmt::format("{}: it belongs to other values of {} than {} has (their hash is {}, in the "
                    "state {}); give "
                    "the parameters that were written with this state",
                    model.path(), shown(name), params.path(), digits_of(hash, 16), found->second));
  }
  if (!unknown.empty())
    note(model, "it has no hash of " + shown(unknown) + ": other parameters are not seen");
}

int64_t count_of(const TensorModel& file, const std::string& name) {
  const TensorEntry& entry = file.at(name);
  const std::string what = file.path() + ": tensor " + shown(name) + " is ";
  if (entry.dtype != "I64" || entry.bytes() != 8) throw std::runtime_error(what + "no single I64");
  const auto bytes = file.bytes(entry);
  int64_t out = 0;
  std::memcpy(&out, bytes.data(), 8);
  if (out < 0) throw std::runtime_error(what + "negative");
  return out;
}

/// An AdamW parameter whose updates are counted.
struct Counted {
  const StepTensor* tensor;
  std::string name;  // in the file
};

/// In the order of the file.
std::vector<Counted> counted_of(const std::vector<StepTensor>& tensors) {
  std::vector<Counted> out;
  for (const StepTensor& t : tensors)
    if (t.steps() && t.adamw()) out.push_back({&t, "updates/" + t.entry->name});
  return out;
}

/// Of each; none where the file is older than they are, which is said.
std::vector<int64_t> updates_of(const TensorModel& file, const std::vector<Counted>& counted,
                                int64_t step, bool says) {
  std::vector<int64_t> out;
  const bool any = std::any_of(counted.begin(), counted.end(), [&](const Counted& c) {
    return file.table().find(c.name) != nullptr;
  });
  if (any) {
    for (const Counted& c : counted) out.push_back(count_of(file, c.name));
  } else if (says && step > 0 && !counted.empty()) {
    note(file, fmt::format("it has no counts of updates (an older file); every AdamW parameter "
                           "goes on as if it had taken part in all {} steps",
                           step));
  }
  return out;
}

/// Of second moments, whose root an update is divided by: a bad one would end in weights unseen.
/// @param first  the element at which `values` begin.
void check_moments(const TensorModel& file, const Piece& p, int64_t first,
                   std::span<const unsigned char> values) {
  if (p.kind != MUONRT_STATE_VARIANCE && !p.normuon()) return;
  for (size_t i = 0; i * sizeof(float) < values.size(); ++i) {
    float value = 0;
    std::memcpy(&value, values.data() + i * sizeof value, sizeof value);
    if (std::isfinite(value) && value >= 0) continue;
    throw std::runtime_error(
        fmt::format("{}: tensor {}: element {} is {} (a second moment is a finite number >= 0); "
                    "give a file that --state-out wrote",
                    file.path(), shown(p.name), first + static_cast<int64_t>(i), value));
  }
}

/// A master rounds to its parameter: up or down, as rounding at random may. Those of other
/// parameters would take their place in the first step.
/// @param held  where `values` lie in the parameter.
/// @param param  this rank's shard, bf16.
void check_masters(const TensorModel& file, const Piece& p, const Stretch& held,
                   std::span<const unsigned char> values, const unsigned char* param) {
  if (p.kind != MUONRT_STATE_MASTER) return;
  for (int64_t i = 0; i < held.count; ++i) {
    uint32_t master = 0;
    uint16_t rounded = 0;
    std::memcpy(&master, values.data() + i * int64_t{sizeof master}, sizeof master);
    std::memcpy(&rounded, param + (held.local + i) * int64_t{sizeof rounded}, sizeof rounded);
    const uint32_t down = master >> 16, up = down + ((master & 0xffffu) != 0);
    if (rounded == down || rounded == up) continue;
    const float stored = element_as_float("F32", values.data() + i * int64_t{sizeof master});
    const float held_now = element_as_float("BF16", reinterpret_cast<unsigned char*>(&rounded));
    if (std::isnan(stored) && std::isnan(held_now)) continue;
    throw std::runtime_error(fmt::format(
        "{}: tensor {}: element {} is {}, but that of the parameter {} (a master rounds to its "
        "parameter); give the parameters that were written with this state",
        file.path(), shown(p.name), held.element + i, stored, held_now));
  }
}

}  // namespace

void load_state(StepSession& session, const std::vector<StepTensor>& tensors,
                const TensorModel& params, const std::string& path, int rank) {
  const TensorModel file(path);
  check_metadata(file, tensors);
  if (rank == 0) check_values(file, params, tensors);
  const int64_t step = count_of(file, "step");
  const auto counted = counted_of(tensors);
  const std::vector<int64_t> updates = updates_of(file, counted, step, rank == 0);
  const auto pieces = pieces_of(tensors);
  std::set<std::string> names = {"step"};
  for (const Counted& c : counted) names.insert(c.name);
  for (const Piece& p : pieces) {
    names.insert(p.name);
    const TensorEntry& entry = file.at(p.name);
    if (entry.dtype != p.dtype || entry.shape != p.shape()) {
      throw std::runtime_error(path + ": tensor " + shown(p.name) + ": it is " + entry.dtype +
                               " of shape " + shape_text(entry.shape) + " (" + p.dtype +
                               " of shape " + shape_text(p.shape()) +
                               " belongs there); is it another model's, or of other settings?");
    }
  }
  for (const TensorEntry& entry : file.table().entries) {
    if (!names.count(entry.name)) {
      throw std::runtime_error(path + ": tensor " + shown(entry.name) +
                               " belongs to no parameter that steps so; is it another model's?");
    }
  }
  if (session.empty()) return;
  for (const Piece& p : pieces) {
    const muonrt_state_view_t view = session.optimizer().state(p.tensor->index, p.kind);
    if (!view.data) continue;
    // What the view has beyond that (lines of other owners) stays as it is.
    auto local = session.memory().read(view.data, view.numel * p.element());
    for (const Stretch& s : owned_elements(session.optimizer(), *p.tensor, p.kind, rank)) {
      const auto part = file.bytes(file.at(p.name))
                            .subspan(static_cast<size_t>(s.element * p.element()),
                                     static_cast<size_t>(s.count * p.element()));
      check_moments(file, p, s.element, part);
      check_masters(file, p, s, part, static_cast<const unsigned char*>(session.data(*p.tensor)));
      std::memcpy(local.data() + s.local * p.element(), part.data(), part.size());
    }
    session.memory().write(view.data, local);
  }
  session.optimizer().set_step(step);
  for (size_t i = 0; i < updates.size(); ++i)
    session.optimizer().set_updates(counted[i].tensor->index, updates[i]);
}

std::unique_ptr<TensorWriter> save_state(Comm& comm, StepSession& session,
                                         const std::vector<StepTensor>& tensors,
                                         const std::vector<uint64_t>& hashes,
                                         const std::string& path) {
  const auto pieces = pieces_of(tensors);
  const auto counted = counted_of(tensors);
  const bool root = comm.rank() == 0;
  std::unique_ptr<TensorWriter> writer;
  if (root) {
    std::map<std::string, std::string> metadata = {{"format", kStepStateFormat}};
    std::vector<TensorEntry> entries = {{"step", "I64", {}, 0, 8}};
    for (const Counted& c : counted) entries.push_back({c.name, "I64", {}, 0, 8});
    for (const Piece& p : pieces) {
      entries.push_back({p.name, p.dtype, p.shape(), 0, p.elements() * p.element()});
      if (p.kind == MUONRT_STATE_MOMENTUM) metadata[p.name] = momentum_kind(*p.tensor);
    }
    for (size_t i = 0; i < tensors.size(); ++i)
      if (tensors[i].steps()) metadata[hash_key(tensors[i])] = digits_of(hashes[i], 16);
    writer = std::make_unique<TensorWriter>(path, std::move(entries), metadata, Sums::in_metadata);
    const int64_t step = session.empty() ? 0 : session.optimizer().steps();
    writer->add(&step, 8);
    for (const Counted& c : counted) {
      const int64_t updates = session.optimizer().updates(c.tensor->index);
      writer->add(&updates, 8);
    }
  }
  for (const Piece& p : pieces) {
    const muonrt_state_view_t view = session.optimizer().state(p.tensor->index, p.kind);
    const auto local = session.memory().read(view.data, view.data ? view.numel * p.element() : 0);
    const auto whole =
        gather_elements(comm, p.elements(), p.element(),
                        owned_elements(session.optimizer(), *p.tensor, p.kind, comm.rank()),
                        local.data(), "state " + shown(p.name));
    if (root) writer->add(whole.data(), std::ssize(whole));
  }
  if (root) writer->finish();
  return writer;
}

}  // namespace muonrt::tool
