#include "command/state/export.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <stdexcept>

#include "command/output_folder.hpp"
#include "command/progress.hpp"
#include "command/shards.hpp"
#include "opt_json/strict_json.hpp"
#include "show/table.hpp"

namespace muonrt::tool {

namespace {

using Bytes = std::vector<unsigned char>;
using Shape = std::vector<int64_t>;

// The name of the format, in the metadata of files with momentum and moments.
constexpr const char* kStateFormat = "muonrt step state 1";

/// A tensor with a function that reads its data. The writer calls it when it needs the data.
struct LateTensor {
  TensorEntry entry;
  std::function<Bytes()> bytes;
};

/// The tensors of one parameter by kind.
struct Parameter {
  std::string name;
  std::map<int32_t, int64_t> index;
};

std::vector<Parameter> parameters_of(Checkpoint& checkpoint) {
  std::vector<Parameter> out;
  for (int64_t i = 0; i < checkpoint.info().n_tensors; ++i) {
    const muonrt_checkpoint_tensor_t tensor = checkpoint.tensor(i);
    if (tensor.kind == MUONRT_STATE_PARAM) out.push_back({tensor.param, {}});
    out.back().index[tensor.kind] = i;
  }
  return out;
}

LateTensor late(const std::string& name, const std::string& dtype, const Shape& shape,
                int64_t bytes, std::function<Bytes()> read) {
  return {{name, dtype, shape, 0, bytes}, std::move(read)};
}

/// Combines a parameter and its remainder into f32 weights, as muonrt/param.h specifies.
Bytes joined(Checkpoint& checkpoint, int64_t param, int64_t remainder) {
  const Bytes high = checkpoint.read(param), low = checkpoint.read(remainder);
  Bytes out(high.size() * 2);
  for (size_t i = 0; i < high.size(); i += 2) {
    uint16_t half = 0;
    int16_t rest = 0;
    std::memcpy(&half, &high[i], 2);
    std::memcpy(&rest, &low[i], 2);
    const uint32_t bits = (uint32_t{half} << 16) + static_cast<uint32_t>(int32_t{rest});
    std::memcpy(&out[i * 2], &bits, sizeof bits);
  }
  return out;
}

Bytes count_bytes(int64_t count) {
  Bytes out(sizeof count);
  std::memcpy(out.data(), &count, sizeof count);
  return out;
}

Shape shape_of(const muonrt_checkpoint_tensor_t& tensor) {
  return {tensor.shape, tensor.shape + tensor.ndim};
}

/// Returns the values of the parameters: the saved master weights if there are any, otherwise the
/// saved parameters combined with their remainders, if any. If neither was saved, throws
/// std::runtime_error.
std::vector<LateTensor> weights_of(const Saved& saved, Checkpoint& checkpoint) {
  std::vector<LateTensor> out;
  for (const Parameter& p : parameters_of(checkpoint)) {
    const int64_t param = p.index.at(MUONRT_STATE_PARAM);
    const auto master = p.index.find(MUONRT_STATE_MASTER);
    const auto remainder = p.index.find(MUONRT_STATE_REMAINDER);
    const muonrt_checkpoint_tensor_t tensor = checkpoint.tensor(param);
    const int64_t source = master != p.index.end() ? master->second : param;
    const muonrt_checkpoint_tensor_t from = checkpoint.tensor(source);
    const Shape shape = shape_of(tensor);
    if (!from.has_data && std::find(shape.begin(), shape.end(), 0) == shape.end()) {
      std::string words;
      for (const auto& [kind, unused] : p.index)
        if (kind != MUONRT_STATE_PARAM)
          words += fmt::format("{}{}", words.empty() ? "" : ", ", kind_text(kind));
      throw std::runtime_error(fmt::format(
          "{}: param {}: neither its values nor its master weights were saved, but only: {}; save "
          "without without_params",
          saved.path(), shown(p.name), words.empty() ? "nothing" : words));
    }
    if (source == param && remainder != p.index.end()) {
      out.push_back(late(p.name, "F32", shape, from.bytes * 2,
                         [&checkpoint, param, rest = remainder->second] {
                           return joined(checkpoint, param, rest);
                         }));
    } else {
      out.push_back(late(p.name, dtype_text(from), shape, from.bytes, [&checkpoint, source, from] {
        return from.bytes == 0 ? Bytes() : checkpoint.read(source);
      }));
    }
  }
  return out;
}

/// Returns all state except weights, in the format that `python -m muonrt.convert` reads.
std::vector<LateTensor> state_of(Checkpoint& checkpoint) {
  const auto count = [](const std::string& name, int64_t value) {
    return late(name, "I64", {}, sizeof value, [value] { return count_bytes(value); });
  };
  std::vector<LateTensor> out = {count("step", checkpoint.info().step)}, moments;
  for (const Parameter& p : parameters_of(checkpoint)) {
    for (const auto& [kind, index] : p.index) {
      if (kind != MUONRT_STATE_MOMENTUM && kind != MUONRT_STATE_VARIANCE &&
          kind != MUONRT_STATE_NORMUON)
        continue;
      const muonrt_checkpoint_tensor_t tensor = checkpoint.tensor(index);
      if (kind == MUONRT_STATE_MOMENTUM && tensor.role == MUONRT_ROLE_ADAMW)
        out.push_back(count("updates/" + p.name, tensor.update_count));
      moments.push_back(late(fmt::format("{}/{}", kind_text(kind), p.name), dtype_text(tensor),
                             shape_of(tensor), tensor.bytes,
                             [&checkpoint, at = index] { return checkpoint.read(at); }));
    }
  }
  out.insert(out.end(), moments.begin(), moments.end());
  return out;
}

std::map<std::string, std::string> state_metadata(Checkpoint& checkpoint) {
  std::map<std::string, std::string> out = {{"format", kStateFormat}};
  for (const muonrt_checkpoint_tensor_t& tensor : tensors_with_data(checkpoint))
    if (tensor.kind == MUONRT_STATE_MOMENTUM)
      out[std::string("momentum/") + tensor.param] =
          tensor.role == MUONRT_ROLE_ADAMW                     ? "adamw"
          : tensor.momentum_kind == MUONRT_MOMENTUM_HEAVY_BALL ? "heavy_ball"
                                                               : "ema";
  return out;
}

/// Writes tensors to files with an index, and adds a row for each file to `table`.
void write(const ExportArguments& arguments, const std::string& folder, const std::string& name,
           const std::vector<LateTensor>& tensors,
           const std::map<std::string, std::string>& metadata, Table& table) {
  Progress progress;
  std::vector<TensorEntry> entries;
  for (const LateTensor& tensor : tensors) entries.push_back(tensor.entry);
  ShardWriter writer(folder, name, cut_into_shards(name, entries, metadata, arguments.most), false);
  for (const LateTensor& tensor : tensors) {
    progress.show(fmt::format("export: {}: {}", name, shown(tensor.entry.name)));
    const std::vector<unsigned char> bytes = tensor.bytes();
    writer.add(bytes.data(), std::ssize(bytes));
  }
  writer.finish();
  for (const auto& file : writer.written())
    table.add({cell::word(file.name), cell::count(file.tensors), cell::bytes(file.bytes)});
  progress.clear();
}

}  // namespace

void export_checkpoint(const ExportArguments& arguments) {
  Checkpoint checkpoint = arguments.saved.open();
  OutputFolder out("--to", arguments.to, false);
  Table files({{"name", "file", Table::Align::kLeft}, {"tensors", "tensors"}, {"bytes", "size"}});
  // The transformers library requires this key in the metadata.
  write(arguments, out.work_path(), "model", weights_of(arguments.saved, checkpoint),
        {{"format", "pt"}}, files);
  if (arguments.state)
    write(arguments, out.work_path(), "state", state_of(checkpoint), state_metadata(checkpoint),
          files);
  out.commit();
  const int64_t step = checkpoint.info().step;
  if (arguments.json) {
    fmt::print("{}\n", json_object({{"to", json_text(arguments.to)},
                                    {"step", fmt::to_string(step)},
                                    {"files", files.json()}}));
  } else {
    fmt::print("step {}: {}\n\n{}", step, arguments.to, files.text());
  }
}

}  // namespace muonrt::tool
