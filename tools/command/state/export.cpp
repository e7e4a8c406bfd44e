#include "command/state/export.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "command/output_folder.hpp"
#include "command/progress.hpp"
#include "command/shards.hpp"
#include "command/table.hpp"
#include "state/conversions.hpp"

namespace muonrt::tool {

namespace {

constexpr auto kMomentum = static_cast<int32_t>(StateKind::kMomentum);
constexpr auto kMaster = static_cast<int32_t>(StateKind::kMaster);
constexpr auto kRemainder = static_cast<int32_t>(StateKind::kRemainder);
constexpr auto kParam = StateTensor::kParam;
// The format in the metadata of exported momenta and moments.
constexpr const char* kStateFormat = "muonrt step state 1";

/// A tensor and the function that writes its data into the file.
struct LateTensor {
  TensorEntry entry;
  std::function<std::vector<unsigned char>()> bytes;
};

bool has(const ManifestParam& p, int32_t kind) { return p.state.contains(kind_name(kind)); }

/// The source of a parameter's values: master weights, or the parameter, perhaps with a remainder.
/// Errors: INVALID_ARGUMENT if neither was saved.
int32_t source_of(const Saved& saved, const ManifestParam& p) {
  if (has(p, kMaster)) return kMaster;
  std::string words;
  for (const auto& [word, unused] : p.state) words += (words.empty() ? "" : ", ") + word;
  MUONRT_REQUIRE(has(p, kParam), kInvalidArg, saved.path(), ": param ", in_quotes(p.name),
                 ": neither its values nor its master weights were saved, but only: ",
                 words.empty() ? "nothing" : words, "; save without without_params");
  return kParam;
}

/// Joins a parameter and its remainder to f32 weights.
std::vector<unsigned char> joined(StateSources& sources, const ManifestParam& p) {
  const auto halves = whole_tensor(sources, p, kParam);
  std::vector<unsigned char> out(halves.size() * 2);
  sources.read(p.name, kRemainder, whole_extent(sources.numel(p.name, kRemainder)),
               tensor_text(p.name, kRemainder),
               [&](int64_t, int64_t element, std::span<const unsigned char> bytes) {
                 const auto at = static_cast<size_t>(element) * 2;
                 const auto weights =
                     join_weights(std::span(halves).subspan(at, bytes.size()), bytes);
                 std::memcpy(out.data() + at * 2, weights.data(), weights.size());
               });
  return out;
}

std::vector<unsigned char> count_bytes(int64_t count) {
  std::vector<unsigned char> out(sizeof count);
  std::memcpy(out.data(), &count, sizeof count);
  return out;
}

TensorEntry entry_of(const std::string& name, const std::string& dtype,
                     const std::vector<int64_t>& shape, int64_t numel) {
  return {name, dtype, shape, 0, numel * element_bytes(dtype)};
}

/// The parameters in the order of the manifest.
std::vector<LateTensor> weights_of(const Saved& saved, const Manifest& manifest,
                                   StateSources& sources) {
  std::vector<LateTensor> out;
  for (const ManifestParam& p : manifest.params) {
    if (std::find(p.shape.begin(), p.shape.end(), 0) != p.shape.end()) {
      out.push_back({entry_of(p.name, p.dtype == "bf16" ? "BF16" : "F32", p.shape, 0),
                     [] { return std::vector<unsigned char>(); }});
      continue;
    }
    const int32_t source = source_of(saved, p);
    const bool joins = source == kParam && has(p, kRemainder);
    out.push_back({entry_of(p.name, joins ? "F32" : dtype_of(p, source), p.shape,
                            sources.numel(p.name, source)),
                   [&sources, &p, source, joins] {
                     return joins ? joined(sources, p) : whole_tensor(sources, p, source);
                   }});
  }
  return out;
}

/// All state except weights, in the form that `python -m muonrt.convert` reads.
std::vector<LateTensor> state_of(const Manifest& manifest, StateSources& sources) {
  const auto count = [](const std::string& name, int64_t value) {
    return LateTensor{entry_of(name, "I64", {}, 1), [value] { return count_bytes(value); }};
  };
  std::vector<LateTensor> out = {count("step", manifest.step)};
  for (const ManifestParam& p : manifest.params)
    if (p.role == "adamw" && has(p, kMomentum))
      out.push_back(count("updates/" + p.name, p.updates));
  for (const ManifestParam& p : manifest.params) {
    for (const auto& [word, dtype] : p.state) {
      const int32_t kind = kind_from_name(word);
      if (!is_moment(kind)) continue;
      const int64_t numel = sources.numel(p.name, kind);
      const bool lines = kind == static_cast<int32_t>(StateKind::kNormuon);
      out.push_back(
          {entry_of(word + "/" + p.name, dtype, lines ? std::vector{numel} : p.shape, numel),
           [&sources, &p, kind] { return whole_tensor(sources, p, kind); }});
    }
  }
  return out;
}

std::map<std::string, std::string> state_metadata(const Manifest& manifest) {
  std::map<std::string, std::string> out = {{"format", kStateFormat}};
  for (const ManifestParam& p : manifest.params)
    if (has(p, kMomentum)) out["momentum/" + p.name] = p.role == "adamw" ? "adamw" : p.momentum;
  return out;
}

/// Writes tensors into files with an index, and adds a row for each file to `table`.
void write(const ExportArguments& arguments, const std::string& folder, const std::string& name,
           const std::vector<LateTensor>& tensors,
           const std::map<std::string, std::string>& metadata, Table& table) {
  Progress progress;
  std::vector<TensorEntry> entries;
  for (const LateTensor& tensor : tensors) entries.push_back(tensor.entry);
  ShardWriter writer(folder, name, cut_into_shards(name, entries, metadata, arguments.most), false);
  for (const LateTensor& tensor : tensors) {
    progress.show(cat("export: ", name, ": ", in_quotes(tensor.entry.name)));
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
  const Manifest manifest = arguments.saved.read();
  StateSources sources(arguments.saved.folder, manifest);
  OutputFolder out("--to", arguments.to, false);
  Table files({{"name", "file", Table::Align::kLeft}, {"tensors", "tensors"}, {"bytes", "size"}});
  // transformers requires this key.
  write(arguments, out.work_path(), "model", weights_of(arguments.saved, manifest, sources),
        {{"format", "pt"}}, files);
  if (arguments.state)
    write(arguments, out.work_path(), "state", state_of(manifest, sources),
          state_metadata(manifest), files);
  out.commit();
  if (arguments.json) {
    fmt::print("{}\n", json_object({{"to", json_text(arguments.to)},
                                    {"step", cat(manifest.step)},
                                    {"files", files.json()}}));
  } else {
    fmt::print("step {}: {}\n\n{}", manifest.step, arguments.to, files.text());
  }
}

}  // namespace muonrt::tool
