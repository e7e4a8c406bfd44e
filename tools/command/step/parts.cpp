#include "command/step/parts.hpp"

#include <stdexcept>

namespace muonrt::tool {

namespace {

[[noreturn]] void refuse(const std::string& where, const std::string& problem) {
  throw std::runtime_error(where + ": " + problem);
}

void take_rates(MatrixPart& part, const PartItem& own, const PartItem& each) {
  part.lr_factor = own.lr_factor.value_or(each.lr_factor.value_or(1.0));
  part.normuon_axis = own.normuon_axis ? own.normuon_axis : each.normuon_axis;
}

std::vector<MatrixPart> listed(const PartsConfig& config, int64_t size, const std::string& where) {
  std::vector<MatrixPart> out;
  int64_t at = 0;
  for (const PartItem& item : config.items) {
    MatrixPart& part = out.emplace_back();
    part.name = item.name;
    take_rates(part, item, config.each);
    if (item.runs.empty()) {
      if (item.size > size - at) {
        refuse(where,
               "the sizes add up to more than the " + std::to_string(size) + " rows or columns");
      }
      part.runs.push_back({at, at + item.size});
    } else {
      for (const auto& [begin, end] : item.runs) part.runs.push_back({begin, end});
    }
    at = part.runs.back().end;
  }
  return out;
}

std::vector<MatrixPart> heads(const PartsConfig& config, int64_t rows, const std::string& where) {
  if (rows % config.heads != 0) {
    refuse(where, std::to_string(rows) + " rows are not a multiple of " +
                      std::to_string(config.heads) + " heads");
  }
  const int64_t size = rows / config.heads;
  std::vector<MatrixPart> out;
  for (int64_t h = 0; h < config.heads; ++h) {
    MatrixPart& part = out.emplace_back();
    part.name = "head " + std::to_string(h);
    take_rates(part, config.items.empty() ? PartItem() : config.items[static_cast<size_t>(h)],
               config.each);
    part.runs.push_back({h * size, (h + 1) * size});
  }
  return out;
}

/// Returns the parts of a matrix whose rows are stored group by group: first the query heads of a
/// group, then its key head, and then its value head.
std::vector<MatrixPart> qkv(const PartsConfig& c, int64_t rows, const std::string& where) {
  int64_t stride = 0, all = 0;
  if (__builtin_mul_overflow(c.q_per_group + 2, c.head_dim, &stride) ||
      __builtin_mul_overflow(stride, c.groups, &all) || all != rows) {
    refuse(where, "groups x (q_per_group + 2) x head_dim is " + std::to_string(c.groups) + " x " +
                      std::to_string(c.q_per_group + 2) + " x " + std::to_string(c.head_dim) +
                      ", but the matrix has " + std::to_string(rows) + " rows");
  }
  std::vector<MatrixPart> out(3);
  const char* names[] = {"q", "k", "v"};
  const PartItem* rates[] = {&c.q, &c.k, &c.v};
  const int64_t begin[] = {0, c.q_per_group * c.head_dim, (c.q_per_group + 1) * c.head_dim, stride};
  for (size_t i = 0; i < 3; ++i) {
    out[i].name = names[i];
    take_rates(out[i], *rates[i], c.each);
    for (int64_t g = 0; g < c.groups; ++g) {
      out[i].runs.push_back({g * stride + begin[i], g * stride + begin[i + 1]});
    }
  }
  return out;
}

}  // namespace

std::vector<MatrixPart> parts_of(const PartsConfig& config, int64_t rows, int64_t cols,
                                 const std::string& where) {
  if (config.kind.empty()) return {};
  const bool columns = config.kind == "cols";
  const int64_t size = columns ? cols : rows;
  std::vector<MatrixPart> out = config.kind == "heads" ? heads(config, rows, where)
                                : config.kind == "qkv" ? qkv(config, rows, where)
                                                       : listed(config, size, where);
  for (MatrixPart& part : out) part.columns = columns;
  return out;
}

}  // namespace muonrt::tool
