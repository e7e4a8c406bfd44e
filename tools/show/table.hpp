#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace muonrt::tool {

/// One value as text for people and as JSON text.
struct Cell {
  std::string text, json;
};

namespace cell {
Cell word(const std::string& value);
Cell count(int64_t value);
/// Rounded to this many decimals in the text, with all digits in JSON; "-" and null for NaN.
Cell number(double value, int decimals);
/// 1.2e-07
Cell scientific(double value);
/// 12,345,678 in the text.
Cell grouped(int64_t value);
/// 1.50 MiB in the text.
Cell bytes(int64_t value);
/// A list of numbers, separated by blanks in the text.
Cell list(const std::vector<int64_t>& values);
/// "-" and null.
Cell nothing();
}  // namespace cell

/// The table of every subcommand: aligned columns as text, or a JSON list of objects.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string key;   // in JSON; carries the unit: "step_ms", "sent_bytes"
    std::string head;  // in the text
    Align align = Align::kRight;
    size_t width = 0;  // minimum; for rows that are printed immediately
  };

  explicit Table(std::vector<Column> columns);

  /// One cell for each column. A column grows with its widest cell.
  void add(std::vector<Cell> row);
  size_t rows() const { return rows_.size(); }

  /// The line of heads, or of row `index`, with the current widths.
  std::string head() const;
  std::string row(size_t index) const;
  /// Whether rows with the current widths fit the terminal.
  bool fits() const;
  /// Heads and all rows, fitted to the terminal as grid_text() does.
  std::string text() const;
  /// The same for a terminal of `width` columns; 0: of any width.
  std::string text(size_t width) const;
  /// [{"key": value, ...}, ...]
  std::string json() const;
  /// Of row `index`, on one line.
  std::string json(size_t index) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

/// Columns of a terminal that UTF-8 text fills: 2 for wide characters, 0 for combining ones.
size_t columns_of(const std::string& text);

/// Returns the beginning of UTF-8 text that fills at most this many columns.
std::string first_columns(const std::string& text, size_t most);

/// 1536 -> "1.50 KiB".
std::string human_bytes(int64_t bytes);

/// {"name":json,...} of pairs of a name and JSON text.
std::string json_object(const std::vector<std::pair<std::string, std::string>>& fields);

/// `text` as a JSON string, quotes included.
std::string json_text(const std::string& text);

}  // namespace muonrt::tool
