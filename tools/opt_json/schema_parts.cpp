#include "opt_json/schema.hpp"

namespace muonrt::tool {

namespace {

std::string read_axis(const Value& v) { return v.choice({"rows", "columns", "longer"}); }

std::vector<Key<PartItem>> rate_keys() {
  return {{"lr_factor", [](PartItem& out, const Value& v) { out.lr_factor = v.number(0, kHuge); }},
          {"normuon_axis", [](PartItem& out, const Value& v) { out.normuon_axis = read_axis(v); }}};
}

std::pair<int64_t, int64_t> read_range(const Value& v) {
  const auto ends = v.integers(0, kMaxSize);
  if (ends.size() != 2 || ends[0] >= ends[1]) {
    v.refuse("must be a range [begin, end] with begin < end, but is " + v.shown());
  }
  return {ends[0], ends[1]};
}

/// Reads one range [begin, end], or a list of ranges.
std::vector<std::pair<int64_t, int64_t>> read_ranges(const Value& v) {
  v.require_list(1);
  if (!v.json[0].is_array()) return {read_range(v)};
  std::vector<std::pair<int64_t, int64_t>> out;
  for (size_t i = 0; i < v.json.size(); ++i) {
    out.push_back(read_range(v.at(i)));
    if (i > 0 && out[i].first < out[i - 1].second) v.at(i).refuse("ranges must ascend");
  }
  return out;
}

/// Reads a size, ranges, or an object with either of them.
PartItem read_item(const Value& v) {
  PartItem out;
  if (v.json.is_array()) {
    out.runs = read_ranges(v);
  } else if (!v.json.is_object()) {
    out.size = v.integer(1, kMaxSize);
  } else {
    static const std::vector<Key<PartItem>> keys = [] {
      auto list = rate_keys();
      list.push_back({"name", [](PartItem& o, const Value& x) { o.name = x.text(); }});
      list.push_back(
          {"size", [](PartItem& o, const Value& x) { o.size = x.integer(1, kMaxSize); }});
      list.push_back({"ranges", [](PartItem& o, const Value& x) { o.runs = read_ranges(x); }});
      return list;
    }();
    read_object(out, v, keys);
    if ((out.size >= 0) == !out.runs.empty()) v.refuse("must have either size or ranges");
  }
  return out;
}

/// Reads a list of bounds 0 = b0 < b1 < ..., or a list of items.
std::vector<PartItem> read_items(const Value& v) {
  v.require_list(1);
  std::vector<PartItem> out;
  if (v.json[0].is_number_integer() && v.at(0).integer(0, kMaxSize) == 0) {
    v.require_list(2);
    int64_t last = 0;
    for (size_t i = 1; i < v.json.size(); ++i) {
      const int64_t bound = v.at(i).integer(last + 1, kMaxSize);
      out.emplace_back().size = bound - last;
      last = bound;
    }
    return out;
  }
  for (size_t i = 0; i < v.json.size(); ++i) out.push_back(read_item(v.at(i)));
  return out;
}

Key<PartsConfig> item_list(const char* name) {
  return {name, [=](PartsConfig& out, const Value& v) {
            out.kind = name;
            out.items = read_items(v);
          }};
}

PartItem read_rates(const Value& v) {
  static const std::vector<Key<PartItem>> keys = rate_keys();
  PartItem out;
  read_object(out, v, keys);
  return out;
}

Key<PartsConfig> count(const char* name, int64_t PartsConfig::*field) {
  return {name, [=](PartsConfig& out, const Value& v) { out.*field = v.integer(1, kMaxSize); }};
}

Key<PartsConfig> third(const char* name, PartItem PartsConfig::*field) {
  return {name, [=](PartsConfig& out, const Value& v) { out.*field = read_rates(v); }};
}

void read_qkv(PartsConfig& out, const Value& v) {
  using C = PartsConfig;
  static const std::vector<Key<C>> keys = {count("groups", &C::groups),
                                           count("q_per_group", &C::q_per_group),
                                           count("head_dim", &C::head_dim),
                                           third("q", &C::q),
                                           third("k", &C::k),
                                           third("v", &C::v)};
  read_object(out, v, keys);
  for (const char* key : {"groups", "q_per_group", "head_dim"}) {
    if (!v.json.contains(key)) v.refuse(std::string(key) + " is missing");
  }
  out.kind = "qkv";
}

/// Reads one value for all parts, or a list with one value for each part.
template <class Read>
void spread(PartsConfig& out, const Value& v, Read read) {
  if (!v.json.is_array()) {
    read(out.each, v);
    return;
  }
  const auto given = static_cast<int64_t>(v.json.size());
  if (out.kind == "heads" && given == out.heads) out.items.resize(v.json.size());
  std::vector<PartItem*> targets;
  for (PartItem& item : out.items) targets.push_back(&item);
  if (out.kind == "qkv") targets = {&out.q, &out.k, &out.v};
  const int64_t parts = out.kind == "heads" ? out.heads : std::ssize(targets);
  if (parts != given) {
    v.refuse("must be one value, or a list with one for each of " + std::to_string(parts) +
             " parts, but is a list of " + std::to_string(given));
  }
  for (size_t i = 0; i < targets.size(); ++i) read(*targets[i], v.at(i));
}

}  // namespace

PartsConfig read_parts(const Value& value) {
  using C = PartsConfig;
  const auto later = [](C&, const Value&) {};
  static const std::vector<Key<C>> keys = {item_list("rows"),
                                           item_list("cols"),
                                           {"heads",
                                            [](C& out, const Value& v) {
                                              out.kind = "heads";
                                              out.heads = v.integer(1, kMaxSize);
                                            }},
                                           {"qkv", read_qkv},
                                           {"lr_factor", later},
                                           {"normuon_axis", later}};
  PartsConfig out;
  read_object(out, value, keys);
  int kinds = 0;
  for (const char* kind : {"rows", "cols", "heads", "qkv"}) kinds += value.json.contains(kind);
  if (kinds != 1) value.refuse("must have exactly one of rows, cols, heads and qkv");
  // These keys refer to the parts, so they are read after the parts, regardless of the order of the
  // keys.
  if (value.json.contains("lr_factor")) {
    spread(out, value.at("lr_factor"),
           [](PartItem& item, const Value& v) { item.lr_factor = v.number(0, kHuge); });
  }
  if (value.json.contains("normuon_axis")) {
    spread(out, value.at("normuon_axis"),
           [](PartItem& item, const Value& v) { item.normuon_axis = read_axis(v); });
  }
  return out;
}

}  // namespace muonrt::tool
