#pragma once

#include <cstdint>
#include <string>

namespace muonrt::train {

// Numbers as text, independent of the locale.

/// 1.2345 -> "1.23" with two decimals. NaN and infinities print as "nan", "inf".
std::string fixed(double value, int decimals);

/// The shortest text that reads back as the same number.
std::string shortest(double value);

/// 4404412 -> "4,404,412".
std::string with_commas(int64_t value);

/// 21340 -> "21.3k", 950 -> "950", 2.5e6 -> "2.5M".
std::string abbreviated(double value);

/// 75 seconds -> "1:15", 3700 -> "1:01:40".
std::string clock_time(double seconds);

}  // namespace muonrt::train
