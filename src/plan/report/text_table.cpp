#include "plan/report/text_table.hpp"

#include <algorithm>
#include <clocale>
#include <cwchar>

namespace muonrt {

size_t columns_of(const std::string& text) {
  static const locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  const locale_t before = utf8 ? uselocale(utf8) : nullptr;
  size_t columns = 0;
  for (size_t at = 0; at < text.size();) {
    std::mbstate_t state{};
    wchar_t character = 0;
    const size_t bytes = std::mbrtowc(&character, text.data() + at, text.size() - at, &state);
    const bool valid = bytes > 0 && bytes <= text.size() - at;
    const int width = valid ? wcwidth(character) : 1;
    columns += static_cast<size_t>(std::max(width, 0));
    at += valid ? bytes : 1;
  }
  if (utf8) uselocale(before);
  return columns;
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
