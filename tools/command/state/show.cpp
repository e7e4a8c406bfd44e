#include "command/state/show.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "show/fit.hpp"
#include "show/table.hpp"

namespace muonrt::tool {

namespace {

using Json = nlohmann::json;

constexpr auto kLeft = Table::Align::kLeft;

/// Returns a table cell for a JSON value: as text without quotes, and as JSON unchanged.
Cell value_of(const Json& value) {
  return {value.is_string() ? value.get<std::string>() : value.dump(), value.dump()};
}

std::string kinds_text(const Json& state) {
  std::string out;
  for (const auto& [word, dtype] : state.items())
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", word, dtype.get<std::string>());
  return out.empty() ? "-" : out;
}

Table params_of(const Json& manifest) {
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
  for (const Json& p : manifest.at("params")) {
    const auto shape = p.at("shape").get<std::vector<int64_t>>();
    table.add({value_of(p.at("name")),
               {fmt::format("[{}]", fmt::join(shape, ", ")), p.at("shape").dump()},
               value_of(p.at("dtype")),
               value_of(p.at("role")),
               value_of(p.at("group")),
               value_of(p.at("momentum")),
               value_of(p.at("constant")),
               cell::grouped(p.at("updates")),
               {kinds_text(p.at("state")), p.at("state").dump()},
               value_of(p.at("hash"))});
  }
  return table;
}

Table files_of(const Json& manifest) {
  Table table({{"name", "file", kLeft}, {"bytes", "size"}});
  for (const Json& file : manifest.at("files"))
    table.add({value_of(file.at("name")), cell::bytes(file.at("bytes"))});
  return table;
}

}  // namespace

void show_checkpoint(const Saved& saved, bool json) {
  const Checkpoint checkpoint = saved.open();
  const Json manifest = Json::parse(checkpoint.manifest());
  std::vector<std::string> kept = Checkpoint::list(saved.folder);
  std::erase(kept, "manifest.json");
  const auto text = [&](const char* key) { return manifest.at(key).dump(); };
  if (json) {
    fmt::print("{}\n", json_object({{"manifest", json_text(saved.path())},
                                    {"format", text("format")},
                                    {"step", text("step")},
                                    {"seed", text("seed")},
                                    {"with_params", text("with_params")},
                                    {"params", params_of(manifest).json()},
                                    {"groups", text("groups")},
                                    {"files", files_of(manifest).json()},
                                    {"kept", texts_json(kept)}}));
    return;
  }
  const muonrt_checkpoint_info_t info = checkpoint.info();
  std::string out = fmt::format(
      "manifest    {}\nformat      {}\nstep        {}\nseed        {}\nparameters  {} {}\n",
      saved.path(), value_of(manifest.at("format")).text, info.step,
      value_of(manifest.at("seed")).text, info.n_params,
      info.with_params ? "(saved)" : "(not saved: a hash of each)");
  out += fmt::format("size        {} in {} files\n", cell::bytes(info.bytes).text, info.n_files);
  for (const std::string& name : kept) out += fmt::format("kept        {}\n", name);
  out += "\n" + params_of(manifest).text() + "\n";
  const Json& groups = manifest.at("groups");
  for (size_t i = 0; i < groups.size(); ++i) {
    out += fmt::format("group {}:", i);
    for (const auto& [name, value] : groups[i].items())
      out += fmt::format(" {}={}", name, value.get<std::string>());
    out += "\n";
  }
  print_fitted(out + "\n" + files_of(manifest).text());
}

}  // namespace muonrt::tool
