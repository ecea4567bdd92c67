# Makes the PNG files of the CSV files beside it: gnuplot figures.gp
set datafile separator ','
set datafile missing ''
set style fill solid 0.8 border -1
set grid ytics lc rgb '#dddddd'
set key outside top center horizontal
set datafile missing NaN
set yrange [0:*]
set ylabel '% refused'
name(a) = a == 0 ? 'planner that sees all' : sprintf('%d asked at most', a)

set terminal pngcairo noenhanced size 720,480 font 'sans,11' background rgb 'white'
set output 'fleet-nodes.png'
set title 'Refused at 90 % load, weights up to 2 s old'
set xlabel 'nodes'
set logscale x
plot for [a=0:5] 'fleet.csv' using ($2 == 0.9 && $3 == 2 && $4 == a ? $1 : NaN):6 with linespoints lw 2 title name(a)
unset logscale x

set terminal pngcairo noenhanced size 720,480 font 'sans,11' background rgb 'white'
set output 'fleet-load.png'
set title '100 nodes: refused by load, weights up to 2 s old'
set xlabel 'load that is offered, % of capacity'
plot for [a=0:3] 'fleet.csv' using ($1 == 100 && $3 == 2 && $4 == a ? 100 * $2 : NaN):6 smooth unique with linespoints lw 2 title name(a)
