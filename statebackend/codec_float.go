package statebackend

import (
	"math"
	"strconv"
)

// AppendDouble appends f as Java's Double.toString writes it: at least one
// digit on each side of the point, and an exponent (1.0E7, 9.9E-4) below
// 0.001 and from 10,000,000 on. NaN and infinities come as bare words.
//
// The digits are the fewest that give the same number back, as Java 19 and
// later write them. Java 17 sometimes writes more than it needs (JDK-4511638):
// for integers above 2^53 (5.3917879521078528E18), for some numbers around
// 1E22 (2.0E23 comes as 1.9999999999999998E23), and for negative powers of two
// and subnormals (5.6843418860808015E-14). These read back as the same number
// but differ as bytes; don't share sets of such numbers with a Java 17 job.
func AppendDouble(b []byte, f float64) []byte { return appendJava(b, f, 64) }

// appendJavaFloat appends a float as a JSON value: NaN and infinities are
// strings, as Jackson writes them by default.
func appendJavaFloat(b []byte, f float64, bits int) []byte {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		b = append(b, '"')
		return append(appendJava(b, f, bits), '"')
	}
	return appendJava(b, f, bits)
}

func appendJava(b []byte, f float64, bits int) []byte {
	switch {
	case math.IsNaN(f):
		return append(b, "NaN"...)
	case math.IsInf(f, 1):
		return append(b, "Infinity"...)
	case math.IsInf(f, -1):
		return append(b, "-Infinity"...)
	}
	if math.Signbit(f) {
		b = append(b, '-')
		f = -f
	}
	if f == 0 {
		return append(b, "0.0"...)
	}
	digits, exp := javaDigits(f, bits)
	if f >= 1e-3 && f < 1e7 {
		return appendPlain(b, digits, exp)
	}
	b = append(b, digits[0], '.')
	b = append(b, digits[1:]...)
	b = append(b, 'E')
	return strconv.AppendInt(b, int64(exp), 10)
}

// javaDigits gives the decimal digits of f (at least two) and the exponent of
// the first one. When one digit would do, Java takes the two-digit decimal
// that is nearest to f if that gives f too: 4.9E-324, not 5.0E-324.
func javaDigits(f float64, bits int) ([]byte, int) {
	digits, exp := scientific(strconv.FormatFloat(f, 'e', -1, bits))
	if len(digits) > 1 {
		return digits, exp
	}
	two := strconv.FormatFloat(f, 'e', 1, bits)
	if back, err := strconv.ParseFloat(two, bits); err == nil && back == f {
		return scientific(two)
	}
	return append(digits, '0'), exp
}

// scientific takes "d.ddde±xx" apart.
func scientific(s string) (digits []byte, exp int) {
	for i := range len(s) {
		switch s[i] {
		case '.':
		case 'e':
			exp, _ = strconv.Atoi(s[i+1:]) // FormatFloat's own output
			return digits, exp
		default:
			digits = append(digits, s[i])
		}
	}
	return digits, exp
}

func appendPlain(b, digits []byte, exp int) []byte {
	for len(digits) > 1 && digits[len(digits)-1] == '0' {
		digits = digits[:len(digits)-1]
	}
	if exp < 0 {
		b = append(b, '0', '.')
		for range -exp - 1 {
			b = append(b, '0')
		}
		return append(b, digits...)
	}
	for i := 0; i <= exp || i < len(digits); i++ {
		if i == exp+1 {
			b = append(b, '.')
		}
		if i < len(digits) {
			b = append(b, digits[i])
		} else {
			b = append(b, '0')
		}
	}
	if len(digits) <= exp+1 {
		b = append(b, '.', '0')
	}
	return b
}
