#include "command/step/tensors.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "base/dtype.hpp"
#include "opt_json/strict_json.hpp"

namespace muonrt::tool {

namespace {

std::string replicated(size_t dims) {
  std::string out;
  for (size_t i = 0; i < dims; ++i) out += i > 0 ? ",R" : "R";
  return out;
}

/// Returns a mesh with one rank that has as many dimensions as there are placements, so that a
/// configuration for a larger mesh can be used on a single rank.
std::string mesh_of_ones(const std::string& placements) {
  std::string out = "d0=1";
  int dims = 1, depth = 0;
  for (const char c : placements) {
    depth += c == '(' ? 1 : c == ')' ? -1 : 0;
    if (c == ',' && depth == 0) out += ",d" + std::to_string(dims++) + "=1";
  }
  return out;
}

size_t dims_of(const std::string& mesh) {
  size_t out = 1;
  for (const char c : mesh) out += c == ',';
  return out;
}

/// @param key  the key of opt.json, for messages.
std::unique_ptr<TensorLayout> layout_of(const StepTensor& t, const ExactWords& words,
                                        const std::string& key) {
  try {
    return std::make_unique<TensorLayout>(words);
  } catch (const std::exception& e) {
    throw std::runtime_error(t.where + ": " + key + ": " + e.what());
  }
}

/// Checks settings that the optimizer cannot check because it reads neither opt.json nor the file.
void check_kind(const StepTensor& t) {
  if (!is_float(t.entry->dtype))
    throw std::runtime_error(
        t.where + ": its dtype is " + t.entry->dtype +
        ", but must be F32, BF16 or F16; convert it, or give it the role frozen");
  if (t.f16() && t.config->master_kind.value_or(MUONRT_MASTER_OWNED) != MUONRT_MASTER_OWNED)
    throw std::runtime_error(
        t.where +
        ": its dtype is F16, which needs f32 master weights; set master_kind to owned, or omit it");
  if (!t.config->is_muon()) return;
  if (t.config->batch_dims && !t.stack())
    throw std::runtime_error(t.where + ": batch_dims is " + std::to_string(*t.config->batch_dims) +
                             ", but view is not stack; set view to stack");
  if (t.config->batch_dims || t.config->row_dims) return;
  const size_t dims = t.entry->shape.size();
  if (t.stack() ? dims != 3 : t.flatten() ? dims < 2 : dims != 2)
    throw std::runtime_error(t.where + ": its shape is " + shape_text(t.entry->shape) +
                             ", but view " + t.config->view.value_or("none") + " needs " +
                             (t.stack()     ? "three dimensions"
                              : t.flatten() ? "at least two dimensions"
                                            : "two dimensions") +
                             "; choose another view, or give it the role adamw");
}

void take_layouts(StepTensor& t, const std::string& given, int world) {
  const LayoutConfig& l = t.config->layout;
  const std::string& placed = l.placements.empty() ? l.grad_placements : l.placements;
  const std::string mesh = !given.empty()                  ? given
                           : world == 1 && !placed.empty() ? mesh_of_ones(placed)
                                                           : "world=" + std::to_string(world);
  const bool cuts = !l.cuts.empty() || !l.row_bounds.empty() || !l.owner.empty() || !l.flat.empty();
  const bool whole = l.placements.empty() && !cuts;
  if (whole && !given.empty()) check_mesh_names(given);
  t.layout = layout_of(t,
                       {t.entry->shape, mesh, whole ? replicated(dims_of(mesh)) : l.placements,
                        cuts ? "" : l.reading, l.cuts, l.row_bounds, l.owner, l.flat},
                       l.placements.empty() ? "layout" : "placements");
  if (l.placements.find('P') != std::string::npos) {
    throw std::runtime_error(
        t.where + ": placements: " + l.placements +
        " contains P, but a parameter is not a sum; write P in grad_placements");
  }
  if (l.grad_placements.empty()) return;
  // `row_bounds`, `owner` and `flat` do not apply to the gradient.
  t.grad_layout = layout_of(t, {t.entry->shape, mesh, l.grad_placements, l.reading, {}, {}, {}, {}},
                            "grad_placements");
  t.partial = l.grad_placements.find('P') != std::string::npos;
}

}  // namespace

std::pair<int64_t, int64_t> StepTensor::matrix_shape() const {
  const std::vector<int64_t>& shape = entry->shape;
  std::pair<int64_t, int64_t> out = {1, 1};
  const size_t first = static_cast<size_t>(batch_dims()), cols = first + row_dims();
  for (size_t i = first; i < shape.size(); ++i) (i < cols ? out.first : out.second) *= shape[i];
  if (transposed()) std::swap(out.first, out.second);
  return out;
}

std::vector<StepTensor> step_tensors(const TensorModel& params, const StepConfig& config,
                                     const std::string& mesh, int world) {
  std::vector<StepTensor> out;
  std::vector<size_t> used;
  int64_t index = 0;
  for (const TensorEntry& entry : params.table().entries) {
    StepTensor& t = out.emplace_back();
    t.entry = &entry;
    t.rule = config.rule_of(entry.name, entry.shape);
    t.config = &config.rules[t.rule].config;
    t.where = config.file + ": " + t.config->rule + ": param " + shown(entry.name);
    if (*t.config->role == "frozen") continue;
    check_kind(t);
    take_layouts(t, mesh, world);
    if (entry.bytes() == 0) continue;  // there are no elements to update
    const auto [rows, cols] = t.matrix_shape();
    t.parts = parts_of(t.config->parts, rows, cols, t.where + ": parts");
    t.index = index++;
    used.push_back(t.rule);
  }
  config.require_muon(used);
  return out;
}

bool is_float(std::string_view dtype) {
  return dtype == "F32" || dtype == "BF16" || dtype == "F16";
}

float element_as_float(std::string_view dtype, const unsigned char* at) {
  if (dtype == "F32") {
    float out;
    std::memcpy(&out, at, sizeof out);
    return out;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return dtype == "F16" ? to_f32(f16{bits}) : to_f32(bf16{bits});
}

int64_t elements_of(const std::vector<Stretch>& stretches) {
  int64_t out = 0;
  for (const Stretch& s : stretches) out += s.count;
  return out;
}

std::vector<unsigned char> cut_tensor(const TensorModel& file, const TensorEntry& entry,
                                      const std::vector<Stretch>& stretches) {
  const int64_t bytes = element_bytes(entry.dtype);
  std::vector<unsigned char> out(static_cast<size_t>(elements_of(stretches) * bytes));
  const auto from = file.bytes(entry);
  for (const Stretch& s : stretches)
    std::memcpy(out.data() + s.local * bytes, from.data() + s.element * bytes,
                static_cast<size_t>(s.count * bytes));
  return out;
}

std::vector<unsigned char> gather_tensor(Comm& comm, const StepTensor& tensor, const void* local) {
  const int64_t bytes = element_bytes(tensor.entry->dtype);
  std::vector<std::vector<unsigned char>> shards(static_cast<size_t>(comm.size()));
  const auto size_on = [&](int rank) {
    return static_cast<size_t>(elements_of(tensor.layout->stretches(rank)) * bytes);
  };
  const auto* own = static_cast<const unsigned char*>(local);
  std::vector<unsigned char>& mine = shards[static_cast<size_t>(comm.rank())];
  mine.assign(own, own + size_on(comm.rank()));
  std::vector<muonrt_send_t> sends;
  std::vector<muonrt_receive_t> receives;
  if (comm.rank() != 0) {
    if (!mine.empty()) sends.push_back({0, 0, mine.data(), std::ssize(mine)});
    comm.exchange(sends, receives);
    return {};
  }
  for (int r = 1; r < comm.size(); ++r) {
    auto& shard = shards[static_cast<size_t>(r)];
    shard.resize(size_on(r));
    if (!shard.empty()) receives.push_back({r, 0, shard.data(), std::ssize(shard)});
  }
  comm.exchange(sends, receives);

  std::vector<unsigned char> whole(static_cast<size_t>(tensor.entry->bytes()));
  std::vector<bool> placed(static_cast<size_t>(tensor.entry->elements()), false);
  const auto length = static_cast<size_t>(bytes);
  for (int r = 0; r < comm.size(); ++r) {
    for (const Stretch& s : tensor.layout->stretches(r)) {
      for (int64_t i = 0; i < s.count; ++i) {
        const auto element = static_cast<size_t>(s.element + i);
        unsigned char* to = whole.data() + element * length;
        const unsigned char* from = shards[static_cast<size_t>(r)].data() + (s.local + i) * bytes;
        if (placed[element] && std::memcmp(to, from, length) != 0)
          throw std::runtime_error(
              "param " + shown(tensor.entry->name) + ": rank " + std::to_string(r) +
              " and a lower rank have different values of element " + std::to_string(element) +
              "; check the machines for a fault and repeat the run");
        std::memcpy(to, from, length);
        placed[element] = true;
      }
    }
  }
  if (const auto gap = std::find(placed.begin(), placed.end(), false); gap != placed.end())
    throw std::runtime_error("param " + shown(tensor.entry->name) + ": no rank holds element " +
                             std::to_string(gap - placed.begin()));
  return whole;
}

}  // namespace muonrt::tool
