#include "command/state/show.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "show/table.hpp"
#include "state/digits.hpp"
#include "state/files.hpp"

namespace muonrt::tool {

namespace {

constexpr auto kLeft = Table::Align::kLeft;

std::string kinds_text(const ManifestParam& p) {
  std::string out;
  for (const auto& [word, dtype] : p.state) out += cat(out.empty() ? "" : ", ", word, " ", dtype);
  return out.empty() ? "-" : out;
}

std::string texts_json(const std::map<std::string, std::string>& texts) {
  std::vector<std::pair<std::string, std::string>> fields;
  for (const auto& [name, text] : texts) fields.emplace_back(name, json_text(text));
  return json_object(fields);
}

Table params_of(const Manifest& m) {
  Table table({{"name", "parameter", kLeft},
               {"shape", "shape", kLeft},
               {"dtype", "dtype", kLeft},
               {"role", "role", kLeft},
               {"group", "group"},
               {"momentum", "momentum", kLeft},
               {"constant", "constant"},
               {"updates", "updates"},
               {"state", "saved", kLeft},
               {"hash", "hash", kLeft}});
  for (const ManifestParam& p : m.params) {
    Cell shape = cell::list(p.shape);
    shape.text = shape_text(p.shape);
    table.add({cell::word(p.name),
               shape,
               cell::word(p.dtype),
               cell::word(p.role),
               cell::count(p.group),
               cell::word(p.momentum),
               {cat(p.momentum_constant), cat(p.momentum_constant)},
               cell::grouped(p.updates),
               {kinds_text(p), texts_json(p.state)},
               cell::word(digits_of(p.hash, 16))});
  }
  return table;
}

Table files_of(const Manifest& m) {
  Table table({{"name", "file", kLeft}, {"bytes", "size"}});
  for (const ManifestFile& file : m.files)
    table.add({cell::word(file.name), cell::bytes(file.bytes)});
  return table;
}

/// Manifests of the folder that are not the newest: older checkpoints that were kept.
std::vector<std::string> kept_in(const std::string& folder) {
  std::vector<std::string> out;
  for (const std::string& name : Files().list(folder))
    if (name.starts_with("manifest-") && name.ends_with(".json")) out.push_back(name);
  std::sort(out.begin(), out.end());
  return out;
}

template <class List, class TextOf>
std::string json_list(const List& list, const TextOf& text_of) {
  std::string out;
  for (const auto& item : list) out += cat(out.empty() ? "" : ",", text_of(item));
  return "[" + out + "]";
}

}  // namespace

void show_checkpoint(const Saved& saved, bool json) {
  const Manifest m = saved.read();
  const auto kept = kept_in(saved.folder);
  if (json) {
    fmt::print("{}\n", json_object({{"manifest", json_text(saved.path())},
                                    {"format", json_text(kCheckpointFormat)},
                                    {"step", cat(m.step)},
                                    {"seed", json_text(digits_of(m.seed, 16))},
                                    {"with_params", cat(m.with_params)},
                                    {"params", params_of(m).json()},
                                    {"groups", json_list(m.groups, texts_json)},
                                    {"files", files_of(m).json()},
                                    {"kept", json_list(kept, json_text)}}));
    return;
  }
  int64_t bytes = 0;
  for (const ManifestFile& file : m.files) bytes += file.bytes;
  fmt::print("manifest    {}\nformat      {}\nstep        {}\nseed        {}\nparameters  {} {}\n",
             saved.path(), kCheckpointFormat, m.step, digits_of(m.seed, 16), m.params.size(),
             m.with_params ? "(saved)" : "(not saved: a hash of each)");
  fmt::print("size        {} in {} files\n", human_bytes(bytes), m.files.size());
  for (const std::string& name : kept) fmt::print("kept        {}\n", name);
  fmt::print("\n{}\n", params_of(m).text());
  for (size_t i = 0; i < m.groups.size(); ++i) {
    fmt::print("group {}:", i);
    for (const auto& [name, text] : m.groups[i]) fmt::print(" {}={}", name, text);
    fmt::print("\n");
  }
  fmt::print("\n{}", files_of(m).text());
}

}  // namespace muonrt::tool
