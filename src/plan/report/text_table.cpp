#include "plan/report/text_table.hpp"

#include <algorithm>

namespace muonrt {

size_t columns_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

std::string TextTable::text() const {
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t most = columns_of(columns_[c].head);
    for (const auto& row : rows_) most = std::max(most, columns_of(row[c]));
    widths.push_back(most);
  }
  std::string out;
  const auto line = [&](const auto& cell_of) {
    for (size_t c = 0; c < columns_.size(); ++c) {
      const std::string& cell = cell_of(c);
      const std::string blanks(widths[c] - columns_of(cell), ' ');
      if (c > 0) out += "  ";
      out += columns_[c].align == Align::kLeft ? cell + blanks : blanks + cell;
    }
    while (!out.empty() && out.back() == ' ') out.pop_back();
    out += '\n';
  };
  line([&](size_t c) -> const std::string& { return columns_[c].head; });
  for (const auto& row : rows_) line([&](size_t c) -> const std::string& { return row[c]; });
  return out;
}

}  // namespace muonrt
