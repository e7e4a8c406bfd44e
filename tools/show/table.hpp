#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace muonrt::tool {

/// One value: what a person reads, and what a program reads (JSON text).
struct Cell {
  std::string text, json;
};

namespace cell {
Cell word(const std::string& value);
Cell count(int64_t value);
/// With so many decimals for a person, all digits for a program; "-" and null if it is no number.
Cell number(double value, int decimals);
/// 1.2e-07
Cell scientific(double value);
/// For a person 12,345,678.
Cell grouped(int64_t value);
/// A list of numbers, for a person with blanks between them.
Cell list(const std::vector<int64_t>& values);
/// "-" and null.
Cell nothing();
}  // namespace cell

/// The one table of every subcommand: aligned columns for a person, a list of objects for a
/// program.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string key;   // in JSON; carries the unit: "step_ms", "sent_bytes"
    std::string head;  // for a person
    Align align = Align::kRight;
    size_t width = 0;  // at least; for rows that are printed as they come
  };

  explicit Table(std::vector<Column> columns);

  /// One cell for each column. A column grows with its widest cell.
  void add(std::vector<Cell> row);
  size_t rows() const { return rows_.size(); }

  /// The heads; row `index`: one line each, with the widths as they are now.
  std::string head() const;
  std::string row(size_t index) const;
  /// Heads and all rows.
  std::string text() const;
  /// [{"key": value, ...}, ...]
  std::string json() const;
  /// Of row `index`, on one line.
  std::string json(size_t index) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

/// {"name":json,...} of pairs of a name and JSON text.
std::string json_object(const std::vector<std::pair<std::string, std::string>>& fields);

/// `text` as a JSON string, quotes included.
std::string json_text(const std::string& text);

}  // namespace muonrt::tool
