#include "show/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "plan/report/text_table.hpp"
#include "show/fit.hpp"

namespace muonrt::tool {

namespace {

std::string aligned(const std::string& text, const Table::Column& column) {
  const std::string blanks(column.width - std::min(column.width, columns_of(text)), ' ');
  return column.align == Table::Align::kLeft ? text + blanks : blanks + text;
}

template <class TextOf>
std::string line(const std::vector<Table::Column>& columns, TextOf text_of) {
  std::string out;
  for (size_t c = 0; c < columns.size(); ++c) {
    if (c > 0) out += "  ";
    out += aligned(text_of(c), columns[c]);
  }
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return out + '\n';
}

}  // namespace

namespace cell {

Cell word(const std::string& value) { return {value, json_text(value)}; }

Cell count(int64_t value) { return {fmt::format("{}", value), fmt::format("{}", value)}; }

Cell number(double value, int decimals) {
  if (!std::isfinite(value)) return nothing();
  const std::string text = std::fabs(value) < 1e9 ? fmt::format("{:.{}f}", value, decimals)
                                                  : fmt::format("{:.1e}", value);
  return {text, fmt::format("{}", value)};
}

Cell scientific(double value) {
  if (!std::isfinite(value)) return {fmt::format("{}", value), "null"};
  return {fmt::format("{:.1e}", value), fmt::format("{}", value)};
}

Cell grouped(int64_t value) {
  std::string text = fmt::format("{}", value);
  const int64_t first = value < 0 ? 1 : 0;
  for (int64_t at = std::ssize(text) - 3; at > first; at -= 3) {
    text.insert(static_cast<size_t>(at), 1, ',');
  }
  return {text, fmt::format("{}", value)};
}

Cell bytes(int64_t value) { return {human_bytes(value), fmt::format("{}", value)}; }

Cell list(const std::vector<int64_t>& values) {
  return {fmt::format("{}", fmt::join(values, " ")), fmt::format("[{}]", fmt::join(values, ","))};
}

Cell nothing() { return {"-", "null"}; }

}  // namespace cell

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {
  for (Column& column : columns_) column.width = std::max(column.width, columns_of(column.head));
}

void Table::add(std::vector<Cell> row) {
  for (size_t c = 0; c < columns_.size(); ++c) {
    Column& column = columns_[c];
    column.width = std::max(column.width, columns_of(row[c].text));
  }
  rows_.push_back(std::move(row));
}

std::string Table::head() const {
  return line(columns_, [&](size_t c) { return columns_[c].head; });
}

std::string Table::row(size_t index) const {
  return line(columns_, [&](size_t c) { return rows_[index][c].text; });
}

std::string Table::text() const { return text(output_width()); }

std::string Table::text(size_t width) const {
  Grid grid;
  std::vector<std::string> heads;
  for (const Column& column : columns_) {
    grid.right.push_back(column.align == Align::kRight);
    grid.width.push_back(column.width);
    heads.push_back(column.head);
  }
  grid.rows.push_back(heads);
  for (const auto& row : rows_) {
    std::vector<std::string> texts;
    for (const Cell& cell : row) texts.push_back(cell.text);
    grid.rows.push_back(texts);
  }
  return grid_text(grid, width);
}

bool Table::fits() const {
  const size_t width = output_width();
  size_t total = 0;
  for (const Column& column : columns_) total += column.width + (total > 0 ? 2 : 0);
  return width == 0 || total <= width;
}

std::string Table::json(size_t index) const {
  std::vector<std::pair<std::string, std::string>> fields;
  for (size_t c = 0; c < columns_.size(); ++c)
    fields.emplace_back(columns_[c].key, rows_[index][c].json);
  return json_object(fields);
}

std::string Table::json() const {
  std::string out = "[";
  for (size_t i = 0; i < rows_.size(); ++i) out += (i > 0 ? ",\n " : "") + json(i);
  return out + "]";
}

std::string first_columns(const std::string& text, size_t most) {
  size_t end = 0;
  for (size_t at = 1; at <= text.size(); ++at) {
    if (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) continue;
    if (columns_of(text.substr(0, at)) > most) break;
    end = at;
  }
  return text.substr(0, end);
}

std::string json_object(const std::vector<std::pair<std::string, std::string>>& fields) {
  std::string out = "{";
  for (size_t i = 0; i < fields.size(); ++i) {
    out += (i > 0 ? "," : "") + json_text(fields[i].first) + ":" + fields[i].second;
  }
  return out + "}";
}

std::string json_text(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace muonrt::tool
