#include "command/bench/machine_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "show/table.hpp"

namespace muonrt::tool {

namespace {

/// Returns the JSON text of a table of rates, with one row on each line.
template <class Rows, class Row>
std::string table_of(const std::string& source, const Rows& rows, const Row& row) {
  std::string list;
  for (const auto& one : rows)
    list += fmt::format("{}      {}", list.empty() ? "" : ",\n", json_object(row(one)));
  return fmt::format("{{\n    \"source\": {},\n    \"rates\": [\n{}\n    ]\n  }}",
                     json_text(source), list);
}

}  // namespace

double host_memory_bytes() {
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

std::string MachineFile::text() const {
  const auto number = [](double value) { return fmt::format("{:.6g}", value); };
  const auto whole = [](double value) { return fmt::format("{:.0f}", value); };
  std::vector<std::pair<std::string, std::string>> fields = {
      {"name", json_text(name)},
      {"title", json_text(title)},
      {"device", gpu ? "\"cuda\"" : "\"host\""}};
  const auto add = [&](const char* field, const std::string& value, const std::string& from) {
    fields.emplace_back(field,
                        fmt::format("{{\"value\": {}, \"source\": {}}}", value, json_text(from)));
  };
  const std::string assumed = "Assumed; not measured by muonrt bench calibrate.";
  add("memory_bytes", whole(memory_bytes), source);
  fields.emplace_back("products", table_of(source, products, [&](const ProductRate& r) {
                        return std::vector<std::pair<std::string, std::string>>{
                            {"size", whole(r.size)},
                            {"symmetric", number(r.symmetric)},
                            {"general", number(r.general)}};
                      }));
  add("f32_ratio", number(f32_ratio), source);
  add("product_seconds", number(product_seconds), source);
  add("pass_bytes", number(pass_bytes), source);
  if (!passes.empty())
    fields.emplace_back("passes", table_of(source, passes, [&](const PassRate& r) {
                          std::vector<std::pair<std::string, std::string>> out = {
                              {"footprint", whole(r.footprint)}};
                          for (size_t k = 0; k < kPassKinds; ++k)
                            out.emplace_back(kPassNames[k], number(r.rates[k]));
                          return out;
                        }));
  add("normalize_ratio", number(normalize_ratio), source);
  add("pass_seconds", number(pass_seconds), source);
  add("launch_seconds", number(launch_seconds), source);
  add("handover_seconds", number(handover_seconds), source);
  if (busy_handover_seconds > 0)
    add("busy_handover_seconds", number(busy_handover_seconds), source);
  add("processors", whole(processors), source);
  add("exchange_processors", whole(exchange_processors),
      gpu ? "muonrt_nccl_options_t: max_ctas, whose default is 8."
          : "A copy between ranks of the host occupies one core.");
  add("node_ranks", whole(node_ranks), source);
  add("node_bytes", number(node_bytes), source);
  add("network_bytes", number(network_bytes), assumed);
  add("exchange_seconds", number(exchange_seconds), source);
  add("message_seconds", number(message_seconds), source);
  std::string out;
  for (const auto& [field, value] : fields)
    out += fmt::format("{}  {}: {}", out.empty() ? "{\n" : ",\n", json_text(field), value);
  return out + "\n}\n";
}

}  // namespace muonrt::tool
